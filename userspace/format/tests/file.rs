// SPDX-License-Identifier: GPL-2.0
//! Trace files: what is written is what is read, and broken bytes are told apart.
#![allow(clippy::unwrap_used)]

use blkrelay_format::*;
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// A sub-buffer as the module would hand it out, laid out by hand from the header's comments.
fn subbuf(cpu: u32, seq: u64, times: &[u64]) -> Vec<u8> {
    let used = 128 + 32 * (1 + times.len());
    let mut bytes = Vec::new();
    bytes.extend(b"BKBR");
    bytes.extend(1u16.to_le_bytes()); // version
    bytes.extend(128u16.to_le_bytes()); // header_len
    bytes.extend((used as u32).to_le_bytes());
    bytes.extend(32u16.to_le_bytes()); // record_len
    bytes.extend(0u16.to_le_bytes()); // flags
    bytes.extend([7u8; 16]); // trace_id
    bytes.extend(cpu.to_le_bytes());
    bytes.extend(1u32.to_le_bytes()); // epoch
    bytes.extend(seq.to_le_bytes());
    bytes.extend([0u8; 32]); // events, lost, lost_first, lost_last
    bytes.extend((times.len() as u32).to_le_bytes()); // count
    bytes.extend(1u32.to_le_bytes()); // clock: TSC
    bytes.extend([0u8; 32]); // anchor, mono, raw, real
    bytes.extend(1_000_000u32.to_le_bytes()); // khz
    bytes.extend(0u32.to_le_bytes());
    assert_eq!(bytes.len(), 128);
    // A side record of a code that nobody knows, then the events: queue 5, sector 2048, 4 KiB reads.
    bytes.extend([0u8; 28]);
    bytes.extend([1, 0, 0, 0xf0]);
    for time in times {
        bytes.extend(time.to_le_bytes());
        bytes.extend((5u64 << 48 | 2048).to_le_bytes());
        bytes.extend(4096u32.to_le_bytes());
        bytes.extend(0u32.to_le_bytes()); // opf
        bytes.extend(77u32.to_le_bytes()); // id
        bytes.extend([0x39, 0x30, 0, 1]); // pid 12345, Q
    }
    bytes
}

fn meta() -> Meta {
    Meta {
        format: 1,
        host: "somewhere".into(),
        command: vec!["dd".into(), "if=/dev/sda".into()],
        ..Meta::default()
    }
}

fn small_file() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &meta()).unwrap();
    let mut batch = subbuf(0, 0, &[10, 20]);
    batch.extend(subbuf(1, 0, &[15]));
    let mut appended = Appended::default();
    writer.subbufs(&batch, &mut appended).unwrap();
    assert_eq!((appended.subbufs, appended.events), (2, 3));
    writer
        .chunk(ChunkType::Unknown(99), 0, b"from a later version")
        .unwrap();
    let trailer = Trailer {
        cpus: vec![CpuCounters {
            cpu: 1,
            events: 1,
            ..CpuCounters::default()
        }],
        ..Trailer::default()
    };
    writer.finish(&trailer).unwrap()
}

/// Everything that can be looked at in a file; must never panic.
fn walk(file: &[u8]) -> Result<(usize, usize), Error> {
    let (mut events, mut unknown) = (0, 0);
    read_meta(file)?;
    for chunk in Chunks::new(file)? {
        let chunk = chunk?;
        let payload = chunk.verify()?;
        match chunk.kind() {
            ChunkType::Meta => drop(Meta::parse(payload)?),
            ChunkType::Trailer => drop(Trailer::parse(payload)?),
            ChunkType::Index => drop(read_index(payload)?),
            ChunkType::Devices => drop(parse_devices(payload)?),
            ChunkType::Unknown(_) => unknown += 1,
            ChunkType::Subbuf => {
                for slot in Subbuf::parse(payload)?.slots() {
                    match slot? {
                        Slot::Event(..) => events += 1,
                        Slot::Unknown { .. } => unknown += 1,
                        _ => {}
                    }
                }
            }
        }
    }
    Ok((events, unknown))
}

#[test]
fn what_is_written_is_read() {
    let file = small_file();
    assert_eq!(&file[..8], b"BLKRELAY");
    // The first chunk's head, by hand: magic, META, no flags, length.
    assert_eq!(&file[8..16], b"BKCK\x01\x00\x00\x00");
    assert_eq!(read_meta(&file).unwrap(), meta());
    assert_eq!(walk(&file), Ok((3, 3)));

    let chunks: Vec<_> = Chunks::new(&file).unwrap().map(Result::unwrap).collect();
    assert!(chunks.iter().all(|chunk| chunk.offset % 8 == 0));
    let subbuf_at = chunks[1];
    let index = read_index(chunks[5].payload).unwrap();
    assert_eq!(index.len(), 2);
    assert_eq!(index[0].offset, subbuf_at.offset);
    assert_eq!((index[0].first, index[0].count, index[0].cpu), (10, 2, 0));
    assert_eq!((index[1].first, index[1].count, index[1].cpu), (15, 1, 1));

    let subbuf = Subbuf::parse(subbuf_at.verify().unwrap()).unwrap();
    let Some(Ok(Slot::Event(action, record))) = subbuf.slots().nth(1) else {
        unreachable!("the second slot is an event");
    };
    assert_eq!(action, Action::Queue);
    assert_eq!(record.queue(), 5);
    assert_eq!(record.sector(), Some(2048));
    assert_eq!(record.pid(), 12345);
}

#[test]
fn each_way_to_be_broken_has_its_error() {
    let file = small_file();
    assert_eq!(walk(b""), Err(Error::Empty));
    assert_eq!(walk(b"\x7fELF and so on"), Err(Error::NotATrace));
    assert_eq!(walk(b"BLKRELAY"), Err(Error::NoMeta));
    assert!(matches!(walk(&file[..20]), Err(Error::Truncated { .. })));

    let newer = Writer::new(
        Vec::new(),
        &Meta {
            format: 2,
            ..meta()
        },
    )
    .unwrap()
    .finish(&Trailer::default())
    .unwrap();
    assert_eq!(
        walk(&newer),
        Err(Error::NewerVersion { found: 2, known: 1 })
    );

    let mut swapped = file.clone();
    swapped[8..12].reverse();
    assert_eq!(walk(&swapped), Err(Error::ForeignEndian));

    let mut broken = subbuf(0, 0, &[1]);
    broken[128 + 32 + 31] = 0;
    assert_eq!(
        Subbuf::parse(&broken)
            .unwrap()
            .slots()
            .nth(1)
            .unwrap()
            .err(),
        Some(Error::UnknownAction { slot: 1, action: 0 })
    );
    let mut broken = subbuf(0, 0, &[1]);
    broken[128 + 28] = 3;
    assert_eq!(
        Subbuf::parse(&broken)
            .unwrap()
            .slots()
            .next()
            .unwrap()
            .err(),
        Some(Error::SideLength {
            slot: 0,
            code: 0xf0,
            slots: 3,
            left: 2
        })
    );
    let mut broken = subbuf(0, 0, &[1]);
    broken[8] = 1;
    assert_eq!(
        Subbuf::parse(&broken).err(),
        Some(Error::SubbufField {
            field: "used",
            value: 1
        })
    );
}

#[test]
fn a_file_cut_anywhere_is_read_up_to_the_cut() {
    let file = small_file();
    let whole: Vec<u64> = Chunks::new(&file)
        .unwrap()
        .map(|chunk| chunk.unwrap().offset)
        .collect();
    for len in 0..file.len() {
        let cut = &file[..len];
        let _ = walk(cut);
        let Ok(chunks) = Chunks::new(cut) else {
            assert!(len < 8);
            continue;
        };
        let good = chunks.filter(Result::is_ok).count();
        let expected = Chunks::new(&file)
            .unwrap()
            .map(Result::unwrap)
            .filter(|chunk| chunk.payload_offset() as usize + chunk.payload.len() <= len)
            .count();
        assert_eq!(good, expected, "cut at {len} of {whole:?}");
    }
}

#[test]
fn a_chunk_behind_damage_is_found() {
    let mut file = small_file();
    let second = Chunks::new(&file).unwrap().nth(1).unwrap().unwrap();
    let third = Chunks::new(&file).unwrap().nth(2).unwrap().unwrap().offset;
    let at = second.offset as usize;
    file[at..at + 4].fill(0);
    let mut chunks = Chunks::new(&file).unwrap();
    assert!(chunks.next().unwrap().is_ok());
    assert!(matches!(chunks.next(), Some(Err(Error::BadChunk { .. }))));
    assert!(chunks.next().is_none());
    assert!(chunks.resync());
    assert_eq!(chunks.next().unwrap().unwrap().offset, third);
}

/// Each head claims all that follows: trying every checksum would take the square of the file's length.
#[test]
fn heads_of_nothing_are_given_up() {
    let mut file = Writer::new(Vec::new(), &meta()).unwrap().get_ref().clone();
    let heads: u32 = 1000;
    for left in (0..heads).rev() {
        let claim = ChunkHead {
            magic: u32::from_ne_bytes(*b"BKCK"),
            type_: ChunkType::Subbuf.code(),
            stored: left * 32,
            length: left * 32,
            checksum: 1,
            ..ChunkHead::default()
        };
        file.extend(claim.as_bytes());
    }
    // A good chunk comes after too many bad ones to be found.
    let mut writer = Writer::new(Vec::new(), &meta()).unwrap();
    let start = writer.len() as usize;
    writer.chunk(ChunkType::Unknown(9), 0, b"good").unwrap();
    file.extend(&writer.get_ref()[start..]);
    let mut chunks = Chunks::new(&file).unwrap();
    assert!(chunks.next().unwrap().is_ok());
    assert!(!chunks.resync());
    assert!(chunks.next().is_none());
}

/// An output that takes so many bytes and no more, like a full disk.
struct Full(Vec<u8>, usize);

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = self.1 - self.0.len();
        if room == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        // Small writes, so that a batch needs many.
        let n = bytes.len().min(room).min(50);
        self.0.extend(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_leaves_whole_chunks() {
    let mut batch = Vec::new();
    for seq in 0..100 {
        batch.extend(subbuf(0, seq, &[seq]));
    }
    let head = Writer::new(Vec::new(), &meta()).unwrap().len() as usize;
    let one = 32 + 128 + 64;
    for room in (0..70 * one).step_by(97) {
        let mut writer = Writer::new(Full(Vec::new(), head + room), &meta()).unwrap();
        let mut appended = Appended::default();
        let error = writer.subbufs(&batch, &mut appended).unwrap_err();
        assert!(matches!(error, WriteError::Io(_)));
        assert_eq!(appended.subbufs as usize, room / one);
        assert_eq!(writer.index().len(), room / one);
        assert_eq!(writer.len() as usize, head + room / one * one);
        let good = writer.len() as usize;
        let file = &writer.get_ref().0[..good];
        assert_eq!(walk(file), Ok((room / one, room / one)));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_error_and_no_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = walk(&bytes);
        let mut with_magic = b"BLKRELAY".to_vec();
        with_magic.append(&mut bytes);
        let _ = walk(&with_magic);
        for slot in Slots::new(&with_magic) {
            let _ = slot;
        }
    }

    #[test]
    fn fields_survive_packing(sector in proptest::option::of(0..(1u64 << 48) - 1), queue: u16, pid in 0..1u32 << 24, status: u8, head: u32) {
        let q = Record { place: Record::pack_place(sector, queue), who: Record::pack_who(Action::GetRq, pid), ..Record::default() };
        prop_assert_eq!((q.sector(), q.queue(), q.pid(), q.action()), (sector, queue, pid, Some(Action::GetRq)));
        let c = Record { who: Record::pack_complete(Action::Complete, status, head), ..Record::default() };
        prop_assert_eq!((c.status(), c.head(), c.action()), (status, head as u16, Some(Action::Complete)));
        prop_assert_eq!(c.as_bytes()[31], 8);
    }
}

/// Known values of XXH3-64 with seed 0, from the reference implementation's `xxhsum -H3`.
#[test]
fn the_checksum_is_xxh3() {
    let of = |payload: &[u8]| {
        let mut writer = Writer::new(Vec::new(), &meta()).unwrap();
        writer.chunk(ChunkType::Unknown(99), 0, payload).unwrap();
        let chunks: Vec<_> = Chunks::new(writer.get_ref())
            .unwrap()
            .map(Result::unwrap)
            .collect();
        chunks[1].head.checksum
    };
    assert_eq!(of(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(of(b"a"), 0xe6c6_32b6_1e96_4e1f);
    let long: Vec<u8> = (0..1000u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(of(&long), 0x33ef_703f_b2b2_0ed1);
}

/// Slots as the contract has them, byte by byte, on a little-endian machine.
#[test]
#[cfg(target_endian = "little")]
fn slots_by_hand() {
    let mut bytes = Vec::new();
    // An event of a code not given out yet.
    bytes.extend([[0x11; 28].as_slice(), &[0, 0, 0, 0x7e]].concat());
    // Detail: cgroup 0x1234, flags 0x40, ioprio class 2 level 4, hint 3, partition 5.
    bytes.extend([0x34, 0x12, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 4, 0x40, 3, 5]);
    bytes.extend([0; 12]);
    bytes.extend([1, 0, 0, 0x83]);
    // Stop: at 0x210, trigger at 0x200, value 10, CPU 7, an error.
    bytes.extend([0x10, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
    bytes.extend([10, 0, 0, 0, 0, 0, 0, 0, 7, 0, 2, 0]);
    bytes.extend([1, 0, 0, 0x84]);
    let mut slots = Slots::new(&bytes);
    let Some(Ok(Slot::UnknownEvent(record))) = slots.next() else {
        unreachable!("an event");
    };
    assert_eq!((record.code(), record.time), (0x7e, 0x1111_1111_1111_1111));
    let Some(Ok(Slot::Detail(detail))) = slots.clone().next() else {
        unreachable!("a detail");
    };
    assert_eq!((detail.cgroup, detail.flags), (0x1234, 0x40));
    assert_eq!(
        (detail.ioprio, detail.write_hint, detail.partno),
        (2 << 13 | 4, 3, 5)
    );
    assert_eq!(slots.take_from(), None);
    assert_eq!(slots.take_detail(), Some(detail));
    assert_eq!(slots.take_detail(), None);
    let Some(Ok(Slot::Stop(stop))) = slots.next() else {
        unreachable!("a stop");
    };
    assert_eq!((stop.time, stop.trigger, stop.value), (0x210, 0x200, 10));
    assert_eq!((stop.trigger_cpu(), stop.cause()), (7, 2));
    assert_eq!(stop, Stop::new(0x210, 0x200, 7, 2, 10));
    assert!(slots.next().is_none());
    assert_eq!(slots.take_times(), None);

    bytes[31] = 0;
    let error = Error::UnknownAction { slot: 0, action: 0 };
    assert!(matches!(Slots::new(&bytes).next(), Some(Err(found)) if found == error));
}

/// A span of 3 bios with status 10, and its times, byte by byte.
#[test]
#[cfg(target_endian = "little")]
fn a_span_by_hand() {
    let mut bytes = Vec::new();
    bytes.extend([[0x11; 28].as_slice(), &[3, 0, 10, 25]].concat());
    // Queue 0x300, issue 0x310, alloc 0x1234, pid 0x0100_0002; the last but one flag, and one not given out.
    bytes.extend([0, 3, 0, 0, 0, 0, 0, 0, 0x10, 3, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0x34, 0x12, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1]);
    bytes.extend([1, 8, 0x80, 0x85]);
    let mut slots = Slots::new(&bytes);
    let Some(Ok(Slot::Event(Action::Span, span))) = slots.next() else {
        unreachable!("a span");
    };
    assert_eq!((span.status(), span.head()), (10, 3));
    assert_eq!(span.who, Record::pack_complete(Action::Span, 10, 3));
    let Some(Ok(Slot::Times(times))) = slots.clone().next() else {
        unreachable!("times");
    };
    assert_eq!(
        (times.queue, times.issue, times.alloc, times.pid),
        (0x300, 0x310, 0x1234, 0x0100_0002)
    );
    assert_eq!(times.flags(), 0x8008);
    assert!(times.has(abi::BLKRELAY_TIMES_PARTIAL) && !times.has(abi::BLKRELAY_TIMES_MISSED));
    assert_eq!(times, Times::new(0x300, 0x310, 0x1234, 0x0100_0002, 0x8008));
    assert_eq!(slots.take_detail(), None);
    assert_eq!(slots.take_times(), Some(times));
    assert_eq!(slots.position(), 2);

    // Of another length it is not what this reader knows.
    bytes[60] = 2;
    let mut slots = Slots::new(&bytes);
    slots.next();
    assert_eq!(slots.take_times(), None);
    let expected = Error::SideLength {
        slot: 1,
        code: 0x85,
        slots: 2,
        left: 1,
    };
    assert!(matches!(slots.next(), Some(Err(error)) if error == expected));
}

/// A pid of 0 is the idle task's, unless the record says that nobody is known.
#[test]
fn who_queued_a_span() {
    let who = |pid, flags: u32| Times::new(1, 2, 3, pid, flags as u16).submitter();
    let (missed, front) = (abi::BLKRELAY_TIMES_MISSED, abi::BLKRELAY_TIMES_FRONT);
    assert_eq!((who(7, 0), who(0, 0)), (Some(7), Some(0)));
    assert_eq!((who(7, front), who(0, front)), (Some(7), None));
    assert_eq!((who(7, missed), who(0, missed)), (None, None));
    let clone = abi::BLKRELAY_TIMES_CLONE;
    assert_eq!((who(7, clone), who(0, clone)), (None, None));
}

/// The codes are the header's, and no two kinds that are told apart have the same name.
#[test]
fn actions_have_codes_and_names() {
    for (code, action) in (1u8..).zip(Action::ALL) {
        assert_eq!(
            (action.code(), Action::from_code(code)),
            (code, Some(action))
        );
        assert!(action.name().len() <= 2);
    }
    assert_eq!(Action::from_code(26), None);
    let names: Vec<&str> = Action::ALL.iter().map(|action| action.name()).collect();
    assert_eq!(
        names.join(" "),
        "Q M F G I R D C P U UT X A M C A E W IS ID ZM ZP ZU ZA SP"
    );
}
