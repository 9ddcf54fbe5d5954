// SPDX-License-Identifier: GPL-2.0
//! blktrace's records, against bytes laid out by hand from the kernel's header.
#![allow(clippy::unwrap_used)]

use blkrelay_format::blktrace::{act, category, Event, Notify, Reader, Version};
use blkrelay_format::Error;
use proptest::prelude::*;

fn v1(action: u32, pdu: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend([7, 0x74, 0x61, 0x65]);
    bytes.extend(3u32.to_le_bytes()); // sequence
    bytes.extend(1_000_000_007u64.to_le_bytes()); // time
    bytes.extend(2048u64.to_le_bytes()); // sector
    bytes.extend(4096u32.to_le_bytes()); // bytes
    bytes.extend(action.to_le_bytes());
    bytes.extend(42u32.to_le_bytes()); // pid
    bytes.extend((8u32 << 20 | 16).to_le_bytes()); // device
    bytes.extend(1u32.to_le_bytes()); // cpu
    bytes.extend((-5i16).to_le_bytes()); // error
    bytes.extend((pdu.len() as u16).to_le_bytes());
    bytes.extend(pdu);
    bytes
}

#[test]
fn version_1() {
    let bytes = v1(0x0092_0001, &[]);
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!(event.version, Version::V1);
    assert_eq!((event.sequence, event.time), (3, 1_000_000_007));
    assert_eq!((event.sector, event.bytes, event.pid), (2048, 4096, 42));
    assert_eq!(
        (event.device, event.cpu, event.error),
        (0x80_0010, 1, 0xfffb)
    );
    assert_eq!(event.act(), act::QUEUE);
    assert!(event.has(category::WRITE | category::QUEUE | category::COMPLETE));
    assert!(!event.has(category::READ));
    assert_eq!(event.notify(), None);
}

#[test]
fn payloads() {
    let mut remap = Vec::new();
    remap.extend(0x0080_0001u32.to_be_bytes());
    remap.extend(0x0080_0000u32.to_be_bytes());
    remap.extend(6208u64.to_be_bytes());
    let bytes = v1(0x0010_000f, &remap);
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!(event.remap(), Some((0x0080_0001, 0x0080_0000, 6208)));

    let bytes = v1(0x0010_000a, &5u64.to_be_bytes());
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!((event.number(), event.remap()), (Some(5), None));

    // A queue event that a cgroup's id precedes.
    let bytes = v1(0x0010_0101, &77u64.to_le_bytes());
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!((event.act(), event.cgroup), (act::QUEUE, Some(77)));
    assert!(event.pdu.is_empty());
}

#[test]
fn notify_records() {
    let bytes = v1(0x0400_0000, b"mkfs.ext4\0\0\0\0\0\0\0");
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    let comm = &b"mkfs.ext4"[..];
    assert_eq!(event.notify(), Some(Notify::Process { pid: 42, comm }));
    let bytes = v1(0x0400_0001, &[1, 0, 0, 0, 2, 0, 0, 0]);
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!(event.notify(), Some(Notify::Timestamp { sec: 1, nsec: 2 }));
    let bytes = v1(0x0400_0002, b"bfq");
    let event = Reader::new(&bytes).next().unwrap().unwrap();
    assert_eq!(event.notify(), Some(Notify::Message(b"bfq")));
}

#[test]
fn broken_records() {
    let good = v1(0x0010_0001, b"payload");
    for len in 1..good.len() {
        let error = Reader::new(&good[..len]).next().unwrap().unwrap_err();
        assert!(matches!(error, Error::BlktraceTruncated { offset: 0, .. }));
    }
    let mut two = good.clone();
    two.extend(b"XXXX and more");
    let mut reader = Reader::new(&two);
    assert!(reader.next().unwrap().is_ok());
    assert!(matches!(
        reader.next(),
        Some(Err(Error::BlktraceMagic { offset: 55, .. }))
    ));
    assert!(reader.next().is_none());
    let mut swapped = good.clone();
    swapped[..4].reverse();
    assert_eq!(
        Reader::new(&swapped).next().unwrap().unwrap_err(),
        Error::ForeignEndian
    );
    let mut later = good;
    later[0] = 9;
    assert_eq!(
        Reader::new(&later).next().unwrap().unwrap_err(),
        Error::BlktraceVersion {
            offset: 0,
            version: 9
        }
    );
}

proptest! {
    #[test]
    fn both_versions_survive_a_round_trip(
        v2: bool, sequence: u32, time: u64, sector: u64, bytes: u32, low in 0u16..256, high: u32,
        pid: u32, device: u32, cpu: u32, error: u16, cgroup: Option<u64>,
        pdu in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let categories = u64::from(high) & if v2 { 0x7f_ffff } else { 0xffff };
        let flag = if cgroup.is_some() { 0x100 } else { 0 };
        let event = Event {
            version: if v2 { Version::V2 } else { Version::V1 },
            sequence, time, sector, bytes, pid, device, cpu, error, cgroup, pdu: &pdu,
            action: categories << 16 | flag | u64::from(low),
        };
        let mut encoded = Vec::new();
        event.encode(&mut encoded);
        event.encode(&mut encoded);
        let read: Vec<_> = Reader::new(&encoded).map(Result::unwrap).collect();
        prop_assert_eq!(read, vec![event.clone(), event]);
    }

    #[test]
    fn any_bytes_are_an_error_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut with_magic = vec![7, 0x74, 0x61, 0x65];
        with_magic.extend(&bytes);
        for event in Reader::new(&bytes).chain(Reader::new(&with_magic)).flatten() {
            let _ = (event.notify(), event.remap(), event.number());
        }
    }
}
