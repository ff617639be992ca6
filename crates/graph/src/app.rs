//! An app and what the engine offers it.

use std::os::fd::BorrowedFd;

use bm_frame::{AnyFrame, Burst, Columns, Frame, Freelist, PickedFrames, pick_into, pick_into_two};
use bm_link::Link;

/// A unit of processing with `pull` and `push`. The engine calls one app at a time.
pub trait App: Send {
    /// Receives frames from outside.
    fn pull(&mut self, _io: &mut Io<'_>) {}

    /// Processes the frames that wait on the inputs.
    fn push(&mut self, _io: &mut Io<'_>) {}

    /// Whether [`push`](Self::push) sends nothing to the outputs, which only [`pull`](Self::pull) does: what waits on
    /// the inputs leaves the network here. Such an app is pushed after those that send to it, even in a loop of links.
    fn is_port(&self) -> bool {
        false
    }

    /// Whether the app also receives frames that are described by their mbufs ([`Io::has_mbufs`]). To others, links
    /// give frames with headers.
    fn takes_mbufs(&mut self) -> bool {
        false
    }

    /// Tells the app the names of its links; the position in the list is the link's index in [`Io`].
    fn connect(&mut self, _inputs: &[String], _outputs: &[String]) {}

    /// A descriptor that becomes readable when the app has something to pull.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Passes on descriptors by which other threads wake the worker for this app.
    fn wakeups<'a>(&'a self, _add: &mut dyn FnMut(BorrowedFd<'a>)) {}

    /// Whether the app must be polled: no descriptor becomes readable when it has something to pull. A worker with such
    /// an app sleeps for short times only.
    fn must_be_polled(&self) -> bool {
        false
    }

    /// Called before the worker sleeps. `false` if it must not: the app has work left.
    fn before_sleep(&mut self) -> bool {
        true
    }

    /// Called after the worker has slept.
    fn after_sleep(&mut self) {}

    /// Called at the end: must free every frame that the app holds.
    fn stop(&mut self, _io: &mut Io<'_>) {}
}

/// Up to this many outputs a burst is scattered to output by output; for more, frame by frame.
const WAYS: usize = 4;
/// A burst is scattered to two outputs in parts of this many frames or more.
const PART: usize = 32;

/// What an app may use while it runs: its links and the worker's free frames.
pub struct Io<'a> {
    pub(crate) links: &'a mut [Link],
    pub(crate) inputs: &'a [usize],
    pub(crate) outputs: &'a [usize],
    /// The worker's free frames.
    pub frames: &'a mut Freelist,
    /// Nanoseconds since the first worker of the process was created, read once per breath.
    pub now_ns: u64,
}

impl<'a> Io<'a> {
    /// For engines of other crates: `inputs` and `outputs` are the indices of the app's links in `links`.
    pub fn new(
        links: &'a mut [Link],
        inputs: &'a [usize],
        outputs: &'a [usize],
        frames: &'a mut Freelist,
        now_ns: u64,
    ) -> Self {
        Self { links, inputs, outputs, frames, now_ns }
    }

    /// The number of links to the app.
    #[inline]
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The number of links from the app.
    #[inline]
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The number of frames waiting on input `index`.
    #[inline]
    pub fn readable(&self, index: usize) -> usize {
        self.inputs.get(index).map_or(0, |&link| self.links[link].readable())
    }

    /// The number of frames for which output `index` has room.
    #[inline]
    pub fn writable(&self, index: usize) -> usize {
        self.outputs.get(index).map_or(0, |&link| self.links[link].writable())
    }

    /// Bytes of all frames ever sent to the outputs: the difference before and after gives the bytes of a burst.
    #[inline]
    pub fn sent_bytes(&self) -> u64 {
        self.outputs.iter().map(|&link| self.links[link].txbytes()).sum()
    }

    /// Receives the oldest frame of input `index`.
    #[inline]
    pub fn receive(&mut self, index: usize) -> Option<Frame> {
        self.links[*self.inputs.get(index)?].receive()
    }

    /// Moves frames of input `index` into `burst` until it is full; returns how many: none of
    /// [`MbufFrame`](bm_frame::MbufFrame)s unless the input [has such](Self::has_mbufs).
    #[inline]
    pub fn receive_burst<F: AnyFrame>(&mut self, index: usize, burst: &mut Burst<F>) -> usize {
        self.inputs.get(index).map_or(0, |&link| self.links[link].receive_burst(burst))
    }

    /// Moves at most `most` frames of input `index` into `burst`, until it is full; returns how many.
    #[inline]
    pub fn receive_some<F: AnyFrame>(&mut self, index: usize, burst: &mut Burst<F>, most: usize) -> usize {
        self.inputs.get(index).map_or(0, |&link| self.links[link].receive_some(burst, most))
    }

    /// Whether the frames on input `index` are described by their mbufs.
    #[inline]
    pub fn has_mbufs(&self, index: usize) -> bool {
        self.inputs.get(index).is_some_and(|&link| self.links[link].has_mbufs())
    }

    /// Whether each app that the outputs lead to takes frames that are described by their mbufs.
    #[inline]
    pub fn sends_mbufs(&self) -> bool {
        self.outputs.iter().all(|&link| self.links[link].takes_mbufs())
    }

    /// Moves the frames of `burst` to output `index` until the link is full; returns how many. Those that are left
    /// stay where they are in the burst.
    #[inline]
    pub fn transmit_burst<F: AnyFrame>(&mut self, index: usize, burst: &mut Burst<F>) -> usize {
        self.outputs.get(index).map_or(0, |&link| self.links[link].transmit_burst(burst))
    }

    /// Moves each frame of `burst` to an output: `ways` contains a number for each slot, and `outputs` the output for
    /// each number. Returns how many were moved. Frames whose link is full, or that have no such output, stay where
    /// they are in the burst. `between` is empty before and after.
    pub fn scatter<F: AnyFrame>(
        &mut self,
        burst: &mut Burst<F>,
        ways: &[u16],
        outputs: &[u16],
        between: &mut Burst<F>,
    ) -> usize {
        let count = burst.len();
        if !self.has_room(count, outputs) {
            return self.scatter_each(burst.places_mut(), ways, outputs);
        }
        let mut moved = 0;
        for (way, &output) in (0..).zip(outputs) {
            let Some(&link) = self.outputs.get(usize::from(output)) else { continue };
            moved += scatter_to(&mut self.links[link], burst.places_mut(), ways, way, between);
        }
        moved
    }

    /// The oldest frames of input `index`, to be changed where they are: as many as follow each other in the ring of the
    /// link, and none if those that wait are of the other kind.
    #[inline]
    pub fn waiting_mut<F: AnyFrame>(&mut self, index: usize) -> &mut [Option<F>] {
        self.inputs.get(index).map_or(&mut [], |&link| self.links[link].waiting_as())
    }

    /// Moves the [first waiting frames](Self::waiting_mut) of input `index` to outputs, as [`scatter`](Self::scatter) does
    /// those of a burst: one for each of `ways`, which contain the number of its output and its length. Nothing is moved
    /// if a link may not have room. Unless all were moved, slots of the input are left with gaps, which only
    /// [`receive_some`](Self::receive_some) allows for.
    pub fn scatter_waiting<F: AnyFrame>(
        &mut self,
        index: usize,
        ways: Columns<'_>,
        outputs: &[u16],
        between: &mut Burst<F>,
    ) -> PickedFrames {
        let (Some(&input), count) = (self.inputs.get(index), ways.keys.len()) else {
            return PickedFrames::default();
        };
        let (done, mut moved) = match outputs {
            &[first, second] => self.move_two::<F>(input, ways, [first, second]),
            _ => (0, PickedFrames::default()),
        };
        if done < count {
            let before = self.sent_bytes();
            moved.count += self.move_rest(input, done, ways.keys, outputs, between);
            moved.bytes += self.sent_bytes() - before;
        }
        if moved.count == count {
            self.links[input].release(count);
        }
        moved
    }

    /// Moves the first frames of a link to two outputs, in one pass, as far as both have room before the ends of their
    /// rings. Returns how many frames were looked at, and which of them were moved.
    #[inline(always)]
    fn move_two<F: AnyFrame>(
        &mut self,
        input: usize,
        ways: Columns<'_>,
        outputs: [u16; 2],
    ) -> (usize, PickedFrames) {
        let (mut done, mut moved) = (0, PickedFrames::default());
        let [Some(&first), Some(&second)] = outputs.map(|output| self.outputs.get(usize::from(output)))
        else {
            return (done, moved);
        };
        let Ok([from, first, second]) = self.links.get_disjoint_mut([input, first, second]) else {
            return (done, moved);
        };
        let count = ways.keys.len();
        if first.writable().min(second.writable()) < count {
            return (done, moved);
        }
        let frames = from.waiting_as::<F>();
        while done < count
            && let (Some(to_first), Some(to_second)) = (first.vacant_as(), second.vacant_as())
        {
            let end = count.min(done + to_first.len().min(to_second.len()));
            // A few at a time would take longer than one output after the other.
            if end < count && end - done < PART {
                break;
            }
            let ways = Columns { keys: &ways.keys[done..end], lengths: &ways.lengths[done..end] };
            let [one, two] = pick_into_two(&mut frames[done..end], ways, [0, 1], [to_first, to_second]);
            first.occupy(one.count, one.bytes);
            second.occupy(two.count, two.bytes);
            moved.count += one.count + two.count;
            moved.bytes += one.bytes + two.bytes;
            done = end;
        }
        (done, moved)
    }

    /// Moves the frames of a link to outputs, one for each of `ways`, except for the first `done`.
    #[inline(never)]
    fn move_rest<F: AnyFrame>(
        &mut self,
        input: usize,
        done: usize,
        ways: &[u16],
        outputs: &[u16],
        between: &mut Burst<F>,
    ) -> usize {
        let (count, ways) = (ways.len(), &ways[done..]);
        let Some(first) = ways.first() else { return 0 };
        // Frames of one port often all leave through one other port.
        let are_alike = ways.iter().fold(0, |others, way| others | (way ^ first)) == 0;
        if !are_alike && !self.has_room(ways.len(), outputs) {
            return 0;
        }
        let mut moved = 0;
        for (way, output) in (0..).zip(outputs).filter(|(way, _)| !are_alike || way == first) {
            let Some(&link) = self.outputs.get(usize::from(*output)) else { continue };
            let Ok([from, to]) = self.links.get_disjoint_mut([input, link]) else { continue };
            let frames = from.waiting_as().get_mut(done..count).unwrap_or_default();
            moved += match are_alike {
                true if to.transmit_all(frames) => frames.len(),
                true => 0,
                false => scatter_to(to, frames, ways, way, between),
            };
        }
        moved
    }

    /// Whether each of a few outputs has room for `count` frames.
    #[inline(always)]
    fn has_room(&self, count: usize, outputs: &[u16]) -> bool {
        outputs.len() <= WAYS
            && outputs
                .iter()
                .filter_map(|&output| self.outputs.get(usize::from(output)))
                .all(|&link| self.links[link].writable() >= count)
    }

    /// Scatters frame by frame: to many outputs, or if a link may become full.
    #[cold]
    fn scatter_each<F: AnyFrame>(
        &mut self,
        frames: &mut [Option<F>],
        ways: &[u16],
        outputs: &[u16],
    ) -> usize {
        let mut moved = 0;
        for (place, &way) in frames.iter_mut().zip(ways) {
            let output =
                outputs.get(usize::from(way)).and_then(|&output| self.outputs.get(usize::from(output)));
            let Some(&link) = output else { continue };
            moved += usize::from(self.links[link].transmit_from(place));
        }
        moved
    }

    /// Sends a frame to output `index`.
    ///
    /// # Errors
    /// Returns the frame if the link is full, or if there is no such output.
    #[inline]
    pub fn transmit(&mut self, index: usize, frame: Frame) -> Result<(), Frame> {
        match self.outputs.get(index) {
            Some(&link) => self.links[link].transmit(frame),
            None => Err(frame),
        }
    }
}

/// Moves the frames of one way to a link with room for all; returns how many.
#[inline(always)]
fn scatter_to<F: AnyFrame>(
    link: &mut Link,
    frames: &mut [Option<F>],
    ways: &[u16],
    way: u16,
    between: &mut Burst<F>,
) -> usize {
    link.transmit_where(frames, ways, way).unwrap_or_else(|| {
        let picked = pick_into(frames, ways, way, between.vacant_mut());
        between.occupy(picked);
        link.transmit_burst(between)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::FramePool;

    #[test]
    fn scatters_a_burst_and_leaves_what_has_no_way() {
        let mut frames = Freelist::new(FramePool::new(2048, 2048).unwrap(), 128);
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
