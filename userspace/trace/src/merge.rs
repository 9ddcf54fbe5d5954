// SPDX-License-Identifier: GPL-2.0
//! Merging sorted streams into one by time, in memory bounded by the number of streams.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stream that tells the time of its next item before it is taken.
pub trait Stream {
    /// What it yields.
    type Item;
    /// The time of the next item, in any unit common to all streams; `None` at the end.
    fn time(&self) -> Option<u64>;
    /// Takes the next item.
    fn next(&mut self) -> Option<Self::Item>;
}

/// Yields the items of all streams by time. Of equal times, the stream that was given first goes first;
/// within a stream the order is kept.
///
/// The heap holds the streams that are not being read. As events come in bursts from one CPU, most items
/// cost one comparison with the heap's top and no change of the heap.
#[derive(Debug)]
pub struct Merge<S> {
    streams: Vec<S>,
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    current: usize,
}

impl<S: Stream> Merge<S> {
    /// Over streams each of which is sorted by time.
    pub fn new(streams: Vec<S>) -> Merge<S> {
        let mut waiting: BinaryHeap<_> = streams
            .iter()
            .enumerate()
            .filter_map(|(index, stream)| Some(Reverse((stream.time()?, index))))
            .collect();
        let current = waiting.pop().map_or(0, |Reverse((_, index))| index);
        Merge {
            streams,
            waiting,
            current,
        }
    }

    /// The streams, in the order in which they were given.
    pub fn streams(&self) -> &[S] {
        &self.streams
    }
}

impl<S: Stream> Iterator for Merge<S> {
    type Item = S::Item;

    #[inline]
    fn next(&mut self) -> Option<S::Item> {
        let time = self.streams.get(self.current)?.time();
        let key = time.map(|time| (time, self.current));
        match (key, self.waiting.peek()) {
            (Some(key), Some(Reverse(first))) if key > *first => {
                let Reverse((_, index)) = self.waiting.pop()?;
                self.waiting.push(Reverse(key));
                self.current = index;
            }
            (None, _) => {
                let Reverse((_, index)) = self.waiting.pop()?;
                self.current = index;
            }
            _ => {}
        }
        self.streams.get_mut(self.current)?.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// (time, stream, number in its stream)
    type Item = (u64, usize, usize);

    struct Fake(std::iter::Peekable<std::vec::IntoIter<Item>>, Option<u64>);

    impl Fake {
        fn new(items: Vec<Item>) -> Fake {
            let mut items = items.into_iter().peekable();
            let time = items.peek().map(|item| item.0);
            Fake(items, time)
        }
    }

    impl Stream for Fake {
        type Item = Item;
        fn time(&self) -> Option<u64> {
            self.1
        }
        fn next(&mut self) -> Option<Item> {
            let item = self.0.next();
            self.1 = self.0.peek().map(|item| item.0);
            item
        }
    }

    fn merge(times: &[Vec<u64>]) -> Vec<Item> {
        let streams = times.iter().enumerate().map(|(stream, times)| {
            let items = times.iter().enumerate();
            Fake::new(items.map(|(n, time)| (*time, stream, n)).collect())
        });
        Merge::new(streams.collect()).collect()
    }

    #[test]
    fn ties_go_to_the_lower_stream() {
        let merged = merge(&[vec![1, 5, 5], vec![], vec![0, 1, 5]]);
        assert_eq!(
            merged,
            [
                (0, 2, 0),
                (1, 0, 0),
                (1, 2, 1),
                (5, 0, 1),
                (5, 0, 2),
                (5, 2, 2)
            ]
        );
        assert!(merge(&[]).is_empty());
        assert!(merge(&[vec![], vec![]]).is_empty());
    }

    proptest! {
        /// The whole contract at once: a merge is the stable sort of the concatenation.
        #[test]
        fn is_a_stable_sort(mut times in proptest::collection::vec(proptest::collection::vec(0u64..50, 0..40), 0..9)) {
            let mut expected = Vec::new();
            for (stream, times) in times.iter_mut().enumerate() {
                times.sort_unstable();
                expected.extend(times.iter().enumerate().map(|(n, time)| (*time, stream, n)));
            }
            expected.sort_by_key(|item| item.0);
            prop_assert_eq!(merge(&times), expected);
        }

        /// Streams that are not sorted themselves still lose nothing and keep their order.
        #[test]
        fn loses_nothing_when_time_goes_back(times in proptest::collection::vec(proptest::collection::vec(0u64..50, 0..40), 0..9)) {
            let merged = merge(&times);
            for (stream, times) in times.iter().enumerate() {
                let of_stream: Vec<u64> = merged.iter().filter(|item| item.1 == stream).map(|item| item.0).collect();
                prop_assert_eq!(&of_stream, times);
            }
        }
    }
}
