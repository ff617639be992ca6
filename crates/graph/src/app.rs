//! A unit of work: what an app is to the engine, and what the engine is to an app.

use std::os::fd::BorrowedFd;

use bm_frame::{Burst, Frame, Freelist};
use bm_link::Link;

/// A unit of work with `pull` and `push`. The engine calls one app at a time.
pub trait App: Send {
    /// Brings frames in from outside.
    fn pull(&mut self, _io: &mut Io<'_>) {}

    /// Works on the frames that wait on the inputs.
    fn push(&mut self, _io: &mut Io<'_>) {}

    /// Says which names the app's links have; a place in the list is the link's index in [`Io`].
    fn connect(&mut self, _inputs: &[String], _outputs: &[String]) {}

    /// What becomes readable when the app has something to pull.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the app has to be asked again and again, since nothing becomes readable when it has something to
    /// pull. A worker with such an app naps instead of sleeping.
    fn must_be_asked(&self) -> bool {
        false
    }

    /// Before the worker sleeps. `false` if it must not: the app has work left.
    fn before_sleep(&mut self) -> bool {
        true
    }

    /// After the worker slept.
    fn after_sleep(&mut self) {}

    /// At the end: frees every frame that the app holds.
    fn stop(&mut self, _io: &mut Io<'_>) {}
}

/// Ways that a burst is scattered over one after the other; over more, frame by frame.
const WAYS: usize = 4;

/// What an app may touch while it runs: its links and the worker's free frames.
pub struct Io<'a> {
    pub(crate) links: &'a mut [Link],
    pub(crate) inputs: &'a [usize],
    pub(crate) outputs: &'a [usize],
    /// The worker's free frames.
    pub frames: &'a mut Freelist,
    /// Nanoseconds since the first worker of the process was made, read once a breath.
    pub now_ns: u64,
}

impl<'a> Io<'a> {
    /// For engines other than ours: `inputs` and `outputs` are the indices in `links` of the app's own.
    pub fn new(
        links: &'a mut [Link],
        inputs: &'a [usize],
        outputs: &'a [usize],
        frames: &'a mut Freelist,
        now_ns: u64,
    ) -> Self {
        Self { links, inputs, outputs, frames, now_ns }
    }

    /// How many links lead to the app.
    #[inline]
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// How many links lead from the app.
    #[inline]
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Frames that wait on input `index`.
    #[inline]
    pub fn readable(&self, index: usize) -> usize {
        self.inputs.get(index).map_or(0, |&link| self.links[link].readable())
    }

    /// Frames that output `index` has room for.
    #[inline]
    pub fn writable(&self, index: usize) -> usize {
        self.outputs.get(index).map_or(0, |&link| self.links[link].writable())
    }

    /// Bytes of all frames that were ever put on the outputs: what a burst adds is the difference before and after.
    #[inline]
    pub fn sent_bytes(&self) -> u64 {
        self.outputs.iter().map(|&link| self.links[link].txbytes()).sum()
    }

    /// Takes the oldest frame of input `index`.
    #[inline]
    pub fn receive(&mut self, index: usize) -> Option<Frame> {
        self.links[*self.inputs.get(index)?].receive()
    }

    /// Moves frames of input `index` into `burst` until it is full; says how many.
    #[inline]
    pub fn receive_burst(&mut self, index: usize, burst: &mut Burst) -> usize {
        self.inputs.get(index).map_or(0, |&link| self.links[link].receive_burst(burst))
    }

    /// Moves at most `most` frames of input `index` into `burst`, until it is full; says how many.
    #[inline]
    pub fn receive_some(&mut self, index: usize, burst: &mut Burst, most: usize) -> usize {
        self.inputs.get(index).map_or(0, |&link| self.links[link].receive_some(burst, most))
    }

    /// Moves the frames of `burst` to output `index` until the link is full; says how many. Those that are
    /// left stay where they are in the burst.
    #[inline]
    pub fn transmit_burst(&mut self, index: usize, burst: &mut Burst) -> usize {
        self.outputs.get(index).map_or(0, |&link| self.links[link].transmit_burst(burst))
    }

    /// Moves each frame of `burst` to an output: `ways` holds a number for each place, and `outputs` the output for
    /// each number. Says how many were moved. Those whose link is full, or that have no such output, stay where they
    /// are in the burst. `between` is empty before and after.
    pub fn scatter(
        &mut self,
        burst: &mut Burst,
        ways: &[u16],
        outputs: &[u16],
        between: &mut Burst,
    ) -> usize {
        let count = burst.len();
        let link_of = |output: &u16| self.outputs.get(usize::from(*output)).copied();
        let has_room = |&link: &usize| self.links[link].writable() >= count;
        if outputs.len() > WAYS || !outputs.iter().filter_map(link_of).all(|link| has_room(&link)) {
            return self.scatter_each(burst.places_mut(), ways, outputs);
        }
        let mut moved = 0;
        for (way, link) in (0..).zip(outputs.iter().map(link_of)) {
            let Some(link) = link else { continue };
            burst.move_where(ways, way, between);
            moved += self.links[link].transmit_burst(between);
        }
        moved
    }

    /// The same where there are many ways, or a link may become full.
    #[cold]
    fn scatter_each(&mut self, frames: &mut [Option<Frame>], ways: &[u16], outputs: &[u16]) -> usize {
        let mut moved = 0;
        for (place, &way) in frames.iter_mut().zip(ways) {
            let output =
                outputs.get(usize::from(way)).and_then(|&output| self.outputs.get(usize::from(output)));
            let Some(&link) = output else { continue };
            let Some(frame) = place.take() else { continue };
            match self.links[link].transmit(frame) {
                Ok(()) => moved += 1,
                Err(frame) => *place = Some(frame),
            }
        }
        moved
    }

    /// Puts a frame on output `index`.
    ///
    /// # Errors
    /// Gives the frame back if the link is full, or if there is no such output.
    #[inline]
    pub fn transmit(&mut self, index: usize, frame: Frame) -> Result<(), Frame> {
        match self.outputs.get(index) {
            Some(&link) => self.links[link].transmit(frame),
            None => Err(frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::Depot;

    #[test]
    fn scatters_a_burst_and_leaves_what_has_no_way() {
        let mut frames = Freelist::new(Depot::new(2048, 2048).unwrap(), 128);
        let mut links = [Link::new(), Link::new()];
        let mut io = Io { links: &mut links, inputs: &[], outputs: &[1, 0], frames: &mut frames, now_ns: 0 };
        let (mut burst, mut between) = (Burst::new(), Burst::new());
        let mut fill = |io: &mut Io<'_>, count: u8| {
            (0..count).for_each(|n| burst.push(io.frames.allocate_with(&[n]).unwrap()).unwrap());
            std::mem::take(&mut burst)
        };
        let mut sent = fill(&mut io, 5);
        // Places 0 and 3 name an output that is not there.
        assert_eq!(io.scatter(&mut sent, &[2, 0, 1, 7, 0], &[0, 1, 9], &mut between), 3);
        let left: Vec<_> = sent.drain().map(|frame| frame.data()[0]).collect();
        assert_eq!((left, io.links[1].readable(), io.links[0].readable()), (vec![0, 3], 2, 1));
        assert_eq!(io.links[1].receive().unwrap().data(), [1]);
        assert_eq!(io.links[1].receive().unwrap().data(), [4]);
        for _ in 0..bm_link::CAPACITY {
            let frame = io.frames.allocate().unwrap();
            io.transmit(0, frame).unwrap();
        }
        let mut sent = fill(&mut io, 2);
        assert_eq!((io.scatter(&mut sent, &[0, 1], &[0, 1], &mut between), sent.frames()), (1, 1));
        assert_eq!((io.links[1].stats().txdrop, io.links[0].readable()), (1, 2));
    }
}
