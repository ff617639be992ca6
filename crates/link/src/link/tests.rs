//! The ring: order, counts, its end, and both kinds of frames.

use super::*;
use bm_frame::{FramePool, Freelist};

fn frames(count: usize) -> (Freelist, Vec<Frame>) {
    let mut list = Freelist::new(FramePool::new(2048, 2048).unwrap(), 4096);
    let frames = (0..count).map(|n| list.allocate_with(&(n as u32).to_be_bytes()).unwrap()).collect();
    (list, frames)
}

#[test]
fn keeps_order_and_counts() {
    let (mut list, frames) = frames(2000);
    let mut link = Link::new();
    let mut expected = 0u32;
    for frame in frames {
        link.transmit(frame).unwrap();
        if link.readable() == 3 {
            let frame = link.receive().unwrap();
            assert_eq!(frame.data(), expected.to_be_bytes());
            expected += 1;
            list.free(frame);
        }
    }
    let stats = link.stats();
    assert_eq!((stats.txpackets, stats.rxpackets, stats.txbytes, stats.txdrop), (2000, 1998, 8000, 0));
    assert_eq!(link.readable(), 2);
}

#[test]
fn gives_back_what_does_not_fit() {
    let (_list, frames) = frames(CAPACITY + 1);
    let mut link = Link::new();
    let refused: Vec<_> = frames.into_iter().filter_map(|frame| link.transmit(frame).err()).collect();
    assert_eq!((refused.len(), link.readable(), link.writable()), (1, CAPACITY, 0));
    assert_eq!(refused[0].data(), (CAPACITY as u32).to_be_bytes());
    assert_eq!(link.stats().txdrop, 1);
    let mut burst = Burst::new();
    assert_eq!((link.receive_burst(&mut burst), link.readable()), (256, CAPACITY - 256));
    assert_eq!(burst.get(255).unwrap().data(), 255u32.to_be_bytes());
}

fn burst_of(frames: &mut impl Iterator<Item = Frame>, count: usize) -> Burst {
    let mut burst = Burst::new();
    frames.take(count).for_each(|frame| burst.push(frame).unwrap());
    burst
}

#[test]
fn carries_bursts_in_order_round_the_end_of_the_ring() {
    let (mut list, frames) = frames(2000);
    let mut frames = frames.into_iter();
    let (mut link, mut expected) = (Link::new(), 0u32);
    for count in [200, 256, 1, 256, 256, 255, 256, 256, 256] {
        let mut burst = burst_of(&mut frames, count);
        // Empty slots are skipped.
        burst.take(0).into_iter().for_each(|frame| list.free(frame));
        expected += 1;
        let moved = link.transmit_burst(&mut burst);
        assert_eq!((moved, burst.len()), (count - 1, 0));
        assert_eq!(link.receive_burst(&mut burst), moved);
        for frame in burst.drain() {
            assert_eq!(frame.data(), expected.to_be_bytes());
            expected += 1;
            list.free(frame);
        }
    }
    let stats = link.stats();
    assert_eq!((stats.txpackets, stats.rxpackets, stats.txdrop), (1983, 1983, 0));
    assert_eq!((stats.txbytes, stats.rxbytes), (4 * 1983, 4 * 1983));
}

#[test]
fn is_filled_and_emptied_in_place_round_the_end_of_the_ring() {
    let (mut list, frames) = frames(2000);
    let mut frames = frames.into_iter();
    let (mut link, mut expected, mut turns_cut) = (Link::new(), 0u32, 0);
    for count in [1000, 1, 22, 300, 1023, 255, 700].into_iter().cycle().take(21) {
        let mut left = count.min(frames.len());
        let before = link.readable();
        assert_eq!(before, 0);
        for turn in 0.. {
            let vacant = link.vacant_mut();
            assert!(vacant.iter().all(Option::is_none));
            let here = vacant.len().min(left);
            vacant[..here].iter_mut().for_each(|place| *place = frames.next());
            link.occupy(here, 4 * here as u64);
            left -= here;
            if left == 0 {
                turns_cut += turn;
                break;
            }
        }
        assert!(link.stats().rxpackets == u64::from(expected));
        while !link.is_empty() {
            let waiting = link.waiting_mut();
            let here = waiting.len().min(256);
            for place in &mut waiting[..here] {
                let frame = place.take().unwrap();
                assert_eq!(frame.data(), expected.to_be_bytes());
                expected += 1;
                list.free(frame);
            }
            link.release(here);
        }
    }
    assert!(turns_cut > 0, "the ring's end was met");
    assert!(link.waiting_mut().is_empty());
    let stats = link.stats();
    assert_eq!((stats.txpackets, stats.rxpackets, stats.txbytes, stats.rxbytes), (2000, 2000, 8000, 8000));
}

#[test]
fn a_full_link_has_no_free_place_to_fill() {
    let (mut list, frames) = frames(CAPACITY);
    let mut link = Link::new();
    frames.into_iter().for_each(|frame| link.transmit(frame).unwrap());
    assert!(link.vacant_mut().is_empty());
    link.occupy(1, 0);
    assert_eq!((link.readable(), link.stats().txpackets), (CAPACITY, CAPACITY as u64));
    while let Some(frame) = link.receive() {
        list.free(frame);
    }
}

fn mbufs(frames: &mut impl Iterator<Item = Frame>, count: usize) -> Burst<MbufFrame> {
    let mut burst = Burst::default();
    let mbufs = frames.take(count).map(|frame| MbufFrame::from_frame(frame).ok().unwrap());
    mbufs.for_each(|frame| assert!(burst.push(frame).is_ok()));
    burst
}

/// Frames that are numbered by their first bytes.
fn numbered(count: usize) -> (Freelist, impl Iterator<Item = Frame>) {
    let mut list = Freelist::new(FramePool::new(2048, 2048).unwrap(), 4096);
    let of = |n: usize| [&(n as u32).to_be_bytes()[..], &[0; 56]].concat();
    let frames: Vec<_> = (0..count).map(|n| list.allocate_with(&of(n)).unwrap()).collect();
    (list, frames.into_iter())
}

fn number(frame: &impl AnyFrame) -> u32 {
    u32::from_be_bytes(*frame.data().first_chunk().unwrap())
}

#[test]
fn frames_described_by_mbufs_have_headers_for_those_who_ask() {
    let (mut list, mut frames) = numbered(1500);
    let mut link = Link::with_mbufs();
    let mut expected = 0;
    let mut check = |frame: Frame| {
        assert_eq!((number(&frame), frame.len()), (expected, 60));
        expected += 1;
        list.free(frame);
    };
    for round in 0..5 {
        assert_eq!(link.transmit_burst(&mut mbufs(&mut frames, 200)), 200);
        let stats = link.stats();
        assert!(link.has_mbufs() && stats.txbytes - stats.rxbytes == 60 * 200);
        let mut as_they_are = Burst::<MbufFrame>::default();
        let mut first = link.waiting_mbufs_mut().unwrap()[0].take().map(AnyFrame::into_frame);
        link.release(1);
        first.take().into_iter().for_each(&mut check);
        if round % 2 == 0 {
            assert_eq!(link.receive_burst(&mut as_they_are), 199);
            as_they_are.drain().map(AnyFrame::into_frame).for_each(&mut check);
            continue;
        }
        // A frame with a header behind them: all of them have one from now on.
        link.transmit(frames.next().unwrap()).unwrap();
        assert!(!link.has_mbufs() && link.receive_burst(&mut as_they_are) == 0);
        assert_eq!(link.transmit_burst(&mut mbufs(&mut frames, 3)), 3);
        check(link.receive().unwrap());
        let mut rest = Burst::new();
        assert_eq!(link.receive_burst(&mut rest), 202);
        rest.drain().for_each(&mut check);
    }
    assert_eq!((link.stats().txpackets, link.stats().txbytes), (1008, 60_480));
    assert_eq!((link.stats().rxpackets, link.stats().rxbytes), (1008, 60_480));
}

#[test]
fn only_links_that_take_them_carry_frames_described_by_mbufs() {
    let (mut list, mut frames) = numbered(1030);
    let mut link = Link::new();
    assert!(!link.takes_mbufs() && link.vacant_mbufs_mut().is_none());
    for _ in 0..4 {
        link.transmit_burst(&mut mbufs(&mut frames, 255));
        assert!(!link.has_mbufs() && link.waiting_mbufs_mut().is_none());
    }
    let mut burst = mbufs(&mut frames, 5);
    assert_eq!((link.transmit_burst(&mut burst), burst.frames(), link.stats().txdrop), (3, 2, 2));
    let left: Vec<_> = burst.drain().map(|frame| number(&frame)).collect();
    assert_eq!(left, [1023, 1024]);
    for expected in 0..CAPACITY as u32 {
        let frame = link.receive().unwrap();
        assert_eq!(number(&frame), expected);
        list.free(frame);
    }
}

#[test]
fn leaves_in_the_burst_what_does_not_fit() {
    let (mut list, frames) = frames(1100);
    let mut frames = frames.into_iter();
    let mut link = Link::new();
    for _ in 0..3 {
        assert_eq!(link.transmit_burst(&mut burst_of(&mut frames, 256)), 256);
    }
    let mut burst = burst_of(&mut frames, 256);
    assert_eq!((link.transmit_burst(&mut burst), burst.frames(), link.writable()), (255, 1, 0));
    assert_eq!(burst.get(255).unwrap().data(), 1023u32.to_be_bytes());
    assert_eq!(link.stats().txdrop, 1);
    let mut more = Burst::new();
    assert_eq!((link.receive_burst(&mut more), link.receive_burst(&mut burst)), (256, 0));
    more.free_all(&mut list);
    burst.free_all(&mut list);
}
