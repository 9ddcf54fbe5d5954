// SPDX-License-Identifier: GPL-2.0
//! Which events belong together. The sequences are those of the block layer of Linux 7.3.
#![allow(clippy::unwrap_used)]

mod common;

use blkrelay_format::{Action, Record, SubbufBuilder};
use blkrelay_trace::{Counts, IoSpan, RequestSpan, Span, Stats, Tracker};
use common::*;
use Action::*;

/// (requests, I/Os, counts) of one CPU's events, in the order in which they complete.
fn track(records: &[Record]) -> (Vec<RequestSpan>, Vec<IoSpan>, Counts) {
    let mut cpu = stream(0);
    for record in records {
        cpu.event(*record);
    }
    track_stream(vec![cpu.finish()], &cpu)
}

fn track_stream(
    subbufs: Vec<Vec<u8>>,
    cpu: &SubbufBuilder,
) -> (Vec<RequestSpan>, Vec<IoSpan>, Counts) {
    let source = open(file(&subbufs, &[cpu]));
    let mut tracker = Tracker::new(&source);
    let (mut requests, mut ios) = (Vec::new(), Vec::new());
    let mut sort = |span| match span {
        Span::Request(span) => requests.push(span),
        Span::Io(span) => ios.push(span),
    };
    for item in source.events() {
        tracker.item(&item).for_each(&mut sort);
    }
    tracker.finish().for_each(&mut sort);
    (requests, ios, tracker.counts())
}

/// Q, G and D of a bio that becomes a request of its own; all at once.
fn submit(time: u64, sector: u64, bytes: u32, opf: u32, bio: u32, tag: u32) -> [Record; 3] {
    [
        event(Queue, time, sector, bytes, opf, bio),
        event(GetRq, time, sector, bytes, opf, bio),
        event(Issue, time + 10, sector, bytes, opf, tag),
    ]
}

#[test]
fn a_plain_read() {
    let mut records = submit(100, 8, 4096, READ, 0xaa_0001, 5).to_vec();
    records.push(complete(150, 8, 4096, READ, 5, 0xaa_0001));
    let (requests, ios, counts) = track(&records);
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].issue_ns, requests[0].complete_ns),
        (1110, 1150)
    );
    assert_eq!(requests[0].bytes, 4096);
    assert_eq!(ios.len(), 1);
    assert_eq!((ios[0].queue_ns, ios[0].complete_ns), (1100, 1150));
    assert_eq!(ios[0].issue_ns, Some(1110));
    assert_eq!(ios[0].submitter.comm.bytes(), b"dd");
    assert_eq!((ios[0].cut, ios[0].stacked), (false, false));
    assert_eq!(counts, Counts::default());
}

/// Two reads of one sector at the same time: only the bios tell them apart.
#[test]
fn equal_sectors_are_told_apart_by_the_bio() {
    let mut records = submit(100, 8, 4096, READ, 1, 5).to_vec();
    records.extend(submit(200, 8, 4096, READ, 2, 6));
    records.push(complete(300, 8, 4096, READ, 6, 2));
    records.push(complete(900, 8, 4096, READ, 5, 1));
    let (_, ios, counts) = track(&records);
    let times: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.complete_ns)).collect();
    assert_eq!(times, [(1200, 1300), (1100, 1900)]);
    assert_eq!(counts, Counts::default());
}

/// The same, but the two bios share the 16 bits that a completion names.
#[test]
fn what_cannot_be_told_apart_is_counted() {
    let mut records = submit(100, 8, 4096, READ, 0x1_0007, 5).to_vec();
    records.extend(submit(200, 8, 4096, READ, 0x2_0007, 6));
    records.push(complete(300, 8, 4096, READ, 6, 0x2_0007));
    records.push(complete(900, 8, 4096, READ, 5, 0x1_0007));
    let (requests, ios, counts) = track(&records);
    assert_eq!(
        requests.len(),
        2,
        "requests pair by their tags all the same"
    );
    assert_eq!(ios, []);
    assert_eq!(counts.ambiguous, 2);
}

#[test]
fn merged_bios_complete_with_their_request() {
    // 1 at 8; 2 merged behind at 16; 3 merged in front at 0; all issued as one request of 24 sectors.
    let records = [
        event(Queue, 100, 8, 4096, WRITE, 1),
        event(GetRq, 100, 8, 4096, WRITE, 1),
        event(Queue, 110, 16, 4096, WRITE, 2),
        event(BackMerge, 110, 16, 4096, WRITE, 2),
        event(Queue, 120, 0, 4096, WRITE, 3),
        event(FrontMerge, 120, 0, 4096, WRITE, 3),
        event(Insert, 130, 0, 12288, WRITE, 9),
        event(Issue, 140, 0, 12288, WRITE, 9),
        complete(200, 0, 12288, WRITE, 9, 3),
    ];
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), requests[0].bytes), (1, 12288));
    let mut queued: Vec<u64> = ios.iter().map(|io| io.queue_ns).collect();
    queued.sort_unstable();
    assert_eq!(queued, [1100, 1110, 1120]);
    assert!(ios.iter().all(|io| io.complete_ns == 1200));
    assert_eq!(counts, Counts::default());
}

/// A second bio at the place of a merged one has a request of its own: it cannot be the merged one.
#[test]
fn a_merge_tells_which_of_two_is_inside() {
    let mut records = vec![
        event(Queue, 100, 8, 4096, READ, 1),
        event(GetRq, 100, 8, 4096, READ, 1),
        event(Queue, 110, 16, 4096, READ, 2),
        event(BackMerge, 110, 16, 4096, READ, 2),
    ];
    records.extend(submit(120, 16, 4096, READ, 3, 7));
    records.push(event(Issue, 130, 8, 8192, READ, 6));
    records.push(complete(200, 8, 8192, READ, 6, 1));
    records.push(complete(300, 16, 4096, READ, 7, 3));
    let (_, ios, counts) = track(&records);
    let times: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.complete_ns)).collect();
    assert_eq!(times, [(1100, 1200), (1110, 1200), (1120, 1300)]);
    assert_eq!(counts, Counts::default());
}

#[test]
fn merged_requests() {
    let records = [
        event(Queue, 100, 0, 4096, WRITE, 1),
        event(GetRq, 100, 0, 4096, WRITE, 1),
        event(Queue, 110, 16, 4096, WRITE, 2),
        event(GetRq, 110, 16, 4096, WRITE, 2),
        // The hole is filled, and the second request goes into the first.
        event(Queue, 120, 8, 4096, WRITE, 3),
        event(BackMerge, 120, 8, 4096, WRITE, 3),
        event(RqMerge, 120, 16, 4096, WRITE, 4),
        event(Issue, 140, 0, 12288, WRITE, 3),
        complete(200, 0, 12288, WRITE, 3, 1),
    ];
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), ios.len()), (1, 3));
    assert_eq!(counts, Counts::default());
}

#[test]
fn a_request_completed_in_two_parts() {
    let mut records = submit(100, 0, 8192, READ, 1, 5).to_vec();
    records.push(complete(200, 0, 4096, READ, 5, 1));
    records.push(complete(300, 8, 4096, READ, 5, 1));
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), requests[0].complete_ns), (1, 1300));
    assert_eq!((ios.len(), ios[0].complete_ns), (1, 1300));
    assert_eq!(counts.partial, 1);
}

#[test]
fn a_requeued_request_counts_from_its_last_issue() {
    let mut records = submit(100, 0, 4096, READ, 1, 5).to_vec();
    records.push(event(Requeue, 120, 0, 4096, READ, 5));
    records.push(event(Issue, 180, 0, 4096, READ, 5));
    records.push(complete(300, 0, 4096, READ, 5, 1));
    let (requests, ios, counts) = track(&records);
    assert_eq!(
        (requests[0].issue_ns, requests[0].complete_ns),
        (1180, 1300)
    );
    assert_eq!((ios[0].queue_ns, ios[0].complete_ns), (1100, 1300));
    assert_eq!((counts.requeued, counts.no_completion), (1, 0));
}

#[test]
fn a_split_bio_is_complete_with_its_last_part() {
    // 24 sectors, split into 8 + 8 + 8. The front parts are bios of their own, the rest stays bio 1.
    let records = [
        event(Queue, 100, 0, 12288, WRITE, 1),
        event(Split, 101, 0, 4096, WRITE, 11),
        event(GetRq, 102, 0, 4096, WRITE, 11),
        event(Issue, 103, 0, 4096, WRITE, 1),
        event(Split, 104, 8, 4096, WRITE, 12),
        event(GetRq, 105, 8, 4096, WRITE, 12),
        event(Issue, 106, 8, 4096, WRITE, 2),
        event(GetRq, 107, 16, 4096, WRITE, 1),
        event(Issue, 108, 16, 4096, WRITE, 3),
        complete(400, 16, 4096, WRITE, 3, 1),
        complete(200, 0, 4096, WRITE, 1, 11),
        complete(500, 8, 4096, WRITE, 2, 12),
    ];
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), ios.len()), (3, 1));
    assert_eq!(
        (ios[0].bytes, ios[0].queue_ns, ios[0].complete_ns),
        (12288, 1100, 1500)
    );
    assert_eq!(
        counts,
        Counts {
            splits: 2,
            ..Counts::default()
        }
    );
}

/// A write with preflush and FUA to a disk with a cache that has no FUA: flush, data, flush, end.
#[test]
fn a_flush_sequence_ends_the_io() {
    let opf = WRITE | PREFLUSH | FUA;
    let flush = |action, time| event(action, time, 0, 0, FLUSH | PREFLUSH, 5);
    let records = [
        event(Queue, 100, 64, 4096, opf, 1),
        event(GetRq, 100, 64, 4096, opf, 1),
        flush(Issue, 110),
        complete(150, 0, 0, FLUSH | PREFLUSH, 5, 0),
        event(Issue, 160, 64, 4096, WRITE, 5),
        complete(200, 64, 4096, WRITE, 5, 1),
        flush(Issue, 210),
        complete(290, 0, 0, FLUSH | PREFLUSH, 5, 0),
        complete(300, 72, 0, WRITE, 5, 1),
    ];
    let (requests, ios, counts) = track(&records);
    let issued: Vec<_> = requests
        .iter()
        .map(|rq| (rq.issue_ns, rq.complete_ns))
        .collect();
    assert_eq!(issued, [(1110, 1150), (1160, 1200), (1210, 1290)]);
    assert_eq!(ios.len(), 1);
    assert_eq!((ios[0].data_ns, ios[0].complete_ns), (1200, 1300));
    assert_eq!(ios[0].issue_ns, Some(1160));
    assert_eq!(
        counts,
        Counts {
            flush_sequences: 1,
            ..Counts::default()
        }
    );
}

/// A FUA write to a disk that can do it: no sequence, and nothing follows.
#[test]
fn a_write_that_only_might_have_gone_on_is_complete_with_its_data() {
    let mut records = submit(100, 0, 4096, WRITE | FUA, 1, 5).to_vec();
    records.push(complete(200, 0, 4096, WRITE | FUA, 5, 1));
    // The bio is used again, long after.
    records.extend(submit(5000, 0, 4096, WRITE | FUA, 1, 5));
    records.push(complete(5100, 0, 4096, WRITE | FUA, 5, 1));
    let (_, ios, counts) = track(&records);
    let times: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.complete_ns)).collect();
    assert_eq!(times, [(1100, 1200), (6000, 6100)]);
    assert_eq!(counts, Counts::default());
}

/// Two processes flush at once; one flush serves both, and each bio has an end of its own.
#[test]
fn flushes_without_data() {
    let opf = WRITE | PREFLUSH;
    let records = [
        event(Queue, 100, 0, 0, opf, 1),
        event(Queue, 110, 0, 0, opf, 2),
        event(Issue, 120, 0, 0, FLUSH, 5),
        complete(200, 0, 0, FLUSH, 5, 0),
        complete(210, 0, 0, opf, 5, 1),
        complete(220, 0, 0, opf, 6, 2),
    ];
    let (requests, ios, counts) = track(&records);
    assert_eq!(requests.len(), 1);
    let times: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.complete_ns)).collect();
    assert_eq!(times, [(1100, 1210), (1110, 1220)]);
    assert_eq!(counts.flush_sequences, 2);
    assert_eq!(
        (counts.ambiguous, counts.no_issue, counts.no_queue),
        (0, 0, 0)
    );
}

#[test]
fn ends_of_the_trace_are_counted_apart() {
    let mut records = vec![complete(50, 512, 4096, READ, 9, 77)];
    records.extend(submit(100, 8, 4096, READ, 1, 5));
    records.push(event(Queue, 120, 16, 4096, READ, 2));
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), ios.len()), (0, 0));
    let expected = Counts {
        no_issue: 1,
        no_queue: 1,
        issued_at_end: 1,
        queued_at_end: 2,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
}

#[test]
fn tags_and_bios_used_again_without_a_completion() {
    let mut records = submit(100, 8, 4096, READ, 1, 5).to_vec();
    records.extend(submit(200, 16, 4096, READ, 1, 5));
    records.push(complete(300, 16, 4096, READ, 5, 1));
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), ios.len()), (1, 1));
    assert_eq!(ios[0].queue_ns, 1200);
    assert_eq!(counts.no_completion, 2);
}

#[test]
fn a_span_across_a_loss_is_cut() {
    let mut cpu = stream(0);
    for record in submit(100, 8, 4096, READ, 1, 5) {
        cpu.event(record);
    }
    let first = cpu.finish();
    names(&mut cpu);
    cpu.lose(2, 120, 130);
    cpu.event(complete(150, 8, 4096, READ, 5, 1));
    for record in submit(200, 8, 4096, READ, 1, 5) {
        cpu.event(record);
    }
    cpu.event(complete(250, 8, 4096, READ, 5, 1));
    let second = cpu.finish();
    let (requests, ios, counts) = track_stream(vec![first, second], &cpu);
    assert_eq!(
        requests.iter().map(|rq| rq.cut).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(
        ios.iter().map(|io| io.cut).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(counts.cut_by_gap, 2);
}

#[test]
fn a_bio_based_driver_completes_the_bio() {
    let records = [
        event(Queue, 100, 0, 8192, WRITE, 1),
        event(Split, 101, 0, 4096, WRITE, 2),
        event(BioComplete, 200, 0, 4096, WRITE, 2),
        event(BioComplete, 300, 4096 / 512, 4096, WRITE, 1),
    ];
    let (_, ios, counts) = track(&records);
    assert_eq!((ios.len(), ios[0].complete_ns), (1, 1300));
    assert_eq!((counts.no_queue, counts.queued_at_end), (0, 0));
}

/// Device mapper's split names the rest (`dm_split_and_process_bio()`). It is not the front part of whatever
/// begins at the same sector.
#[test]
fn a_volume_splits_off_the_front() {
    let records = [
        event(Queue, 100, 0, 8192, WRITE, 1),
        event(Queue, 101, 8, 16384, WRITE, 2),
        event(Split, 102, 8, 4096, WRITE, 1),
        event(BioComplete, 300, 8, 4096, WRITE, 1),
        event(BioComplete, 400, 8, 16384, WRITE, 2),
    ];
    let (_, ios, counts) = track(&records);
    let times: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.complete_ns)).collect();
    assert_eq!(times, [(1100, 1300), (1101, 1400)]);
    assert_eq!((counts.no_queue, counts.queued_at_end), (0, 0));
}

/// The oldest makes way, where no completion is ever seen: of so many I/Os the last 4096 are kept.
#[test]
fn a_crowd_at_one_sector_is_bounded() {
    let records: Vec<_> = (0..5000)
        .map(|bio| event(Queue, 100 + u64::from(bio), 8, 4096, WRITE, bio))
        .collect();
    let (_, ios, counts) = track(&records);
    assert_eq!(ios, []);
    assert_eq!((counts.no_completion, counts.queued_at_end), (904, 4096));
}

/// What a volume passes on to its disk is the disk's I/O, not one more of the process.
#[test]
fn an_io_of_a_stacked_device_is_its_process_once() {
    let lower = |record: Record| Record {
        place: Record::pack_place(record.sector(), 2),
        ..record
    };
    let mut cpu = stream(0);
    cpu.event(event(Queue, 100, 0, 4096, READ, 1))
        .event(lower(event(Remap, 110, 512, 4096, READ, 2)))
        .from(blkrelay_format::RemapFrom::new(8, 0, 0))
        .event(lower(event(Queue, 120, 512, 4096, READ, 2)))
        .event(lower(event(Issue, 130, 512, 4096, READ, 9)))
        .event(lower(complete(200, 512, 4096, READ, 9, 2)))
        .event(event(BioComplete, 210, 0, 4096, READ, 1));
    let bytes = cpu.finish();
    let source = open(file(&[bytes], &[&cpu]));
    let stats = Stats::of(&source);
    let devices: Vec<_> = stats
        .devices
        .iter()
        .map(|device| (device.name.as_str(), device.totals.ios))
        .collect();
    assert_eq!(devices, [("sda", 1), ("sdb", 1)]);
    assert_eq!(stats.processes.len(), 1);
    let dd = &stats.processes[0].totals;
    assert_eq!((dd.ios, dd.bytes), (1, 4096));
    assert_eq!(dd.q2c.as_ref().unwrap().quantiles().max_ns, 110);
}

#[test]
fn statistics_of_a_small_trace() {
    let mut cpu = stream(0);
    // A hundred reads of 1 us each but the last of 1 ms; one flush, one discard.
    for n in 0..100u64 {
        let time = 10_000 * (n + 1);
        for record in submit(time, 8 * n, 4096, READ, 1, 5) {
            cpu.event(record);
        }
        let took = if n == 99 { 1_000_000 } else { 1000 };
        cpu.event(complete(time + took, 8 * n, 4096, READ, 5, 1));
    }
    cpu.event(event(Queue, 3_000_000, 0, 0, WRITE | PREFLUSH, 1));
    cpu.event(event(Queue, 3_000_001, 0, 1 << 20, DISCARD, 2));
    let bytes = cpu.finish();
    let source = open(file(&[bytes], &[&cpu]));
    let stats = Stats::of(&source);
    let sda = &stats.devices[0].totals;
    assert_eq!((sda.ios, sda.bytes, sda.requests), (102, 409_600, 100));
    assert_eq!(
        (sda.reads, sda.writes, sda.flushes, sda.discards),
        (100, 0, 1, 1)
    );
    let q2c = sda.q2c.as_ref().unwrap().quantiles();
    assert_eq!((q2c.count, q2c.max_ns), (100, 1_000_000));
    assert!(q2c.p50_ns.abs_diff(1000) <= 10, "{}", q2c.p50_ns);
    let d2c = sda.d2c.as_ref().unwrap().quantiles();
    assert!(d2c.p99_ns.abs_diff(990) <= 10, "{}", d2c.p99_ns);
    assert_eq!(stats.events, 402);
    assert_eq!(stats.duration_ns, 3_000_001 - 10_000);
    assert_eq!(stats.counts.queued_at_end, 2);
}

/// What E, IS and ID say is known from D and C.
#[test]
fn errors_and_accounting_change_nothing() {
    let records = [
        event(Queue, 100, 8, 4096, READ, 1),
        event(IoStart, 105, 8, 4096, READ, 5),
        event(Issue, 110, 8, 4096, READ, 5),
        Record {
            who: Record::pack_complete(Complete, 10, 1),
            ..complete(150, 8, 4096, READ, 5, 1)
        },
        Record {
            who: Record::pack_complete(Error, 10, 1),
            ..complete(151, 8, 4096, READ, 5, 1)
        },
        event(IoDone, 152, 8, 4096, READ, 5),
        event(TagWait, 160, 0, 64, READ, 0),
    ];
    let (requests, ios, counts) = track(&records);
    assert_eq!((requests.len(), ios.len()), (1, 1));
    assert_eq!((requests[0].complete_ns, requests[0].errno), (1150, -5));
    assert_eq!(counts, Counts::default());
}

/// Filters change while two reads are on their way; a third begins and ends behind that.
#[test]
fn a_span_across_an_epoch_is_cut() {
    let mut cpu = stream(0);
    for record in submit(100, 8, 4096, READ, 1, 5) {
        cpu.event(record);
    }
    cpu.event(event(Queue, 120, 64, 4096, READ, 2));
    let first = cpu.finish();
    names(&mut cpu);
    cpu.epoch(2);
    cpu.event(complete(150, 8, 4096, READ, 5, 1));
    for record in submit(200, 8, 4096, READ, 1, 5) {
        cpu.event(record);
    }
    cpu.event(complete(250, 8, 4096, READ, 5, 1));
    // Of the second read no more is seen, and its bio is used again.
    cpu.event(event(Queue, 300, 128, 4096, READ, 2));
    let second = cpu.finish();
    let (requests, ios, counts) = track_stream(vec![first, second], &cpu);
    let cut: Vec<bool> = requests.iter().map(|rq| rq.cut).collect();
    assert_eq!(cut, [true, false]);
    let cut: Vec<bool> = ios.iter().map(|io| io.cut).collect();
    assert_eq!(cut, [true, false]);
    assert_eq!((counts.cut_by_epoch, counts.cut_by_gap), (3, 0));
    assert_eq!((counts.no_completion, counts.queued_at_end), (0, 1));
}

/// A multipath's request goes on as a clone: its bios were queued above, not here.
#[test]
fn a_clone_has_no_bios_of_its_own() {
    let mut cpu = stream(0);
    cpu.event(event(RqRemap, 100, 8, 4096, READ, 5))
        .from(blkrelay_format::RemapFrom::new(253, 0, 8))
        .event(event(Issue, 110, 8, 4096, READ, 5))
        .event(complete(150, 8, 4096, READ, 5, 77));
    let bytes = cpu.finish();
    let (requests, ios, counts) = track_stream(vec![bytes], &cpu);
    assert_eq!((requests.len(), ios.len()), (1, 0));
    assert_eq!(counts, Counts::default());
}

/// It is queued for the start of the zone (2048), and complete where the drive has put it.
#[test]
fn a_zone_append_completes_elsewhere() {
    let append = 7;
    let mut records = submit(100, 2048, 4096, append, 1, 5).to_vec();
    records.extend(submit(120, 2048, 4096, append, 2, 6));
    records.push(complete(150, 2064, 4096, append, 6, 2));
    records.push(complete(160, 2072, 4096, append, 5, 1));
    let (requests, ios, counts) = track(&records);
    assert_eq!(requests.len(), 2);
    let times: Vec<_> = ios.iter().map(|io| (io.queue_ns, io.complete_ns)).collect();
    assert_eq!(times, [(1120, 1150), (1100, 1160)]);
    assert_eq!(counts, Counts::default());
}
