// SPDX-License-Identifier: GPL-2.0

//! Where Rust believes a field of the kernel's to be, compared with where C has it.
//!
//! bindgen drops the alignment of an empty aligned member, for one, and every field behind it moves
//! in silence. Every field that this module reads or sets is listed here and in `shim.h`; one that
//! differs fails the build.

use crate::{
    abi,
    filter,
    flight,
    probes,
    record,
    span, //
};
use core::mem::offset_of;
use kernel::bindings;

macro_rules! check {
    ($($module:ident :: $type:ident { $($field:ident => $constant:ident),+ $(,)? })+) => {
        $($(
            const _: () = assert!(
                offset_of!($module::$type, $field) == abi::$constant as usize,
                concat!(
                    "bindgen gets the layout of struct ",
                    stringify!($type),
                    " wrong, see field ",
                    stringify!($field),
                ),
            );
        )+)+
    };
}

check! {
    bindings::request {
        q => blkrelay_layout_BLKRELAY_AT_request_q,
        mq_hctx => blkrelay_layout_BLKRELAY_AT_request_mq_hctx,
        cmd_flags => blkrelay_layout_BLKRELAY_AT_request_cmd_flags,
        tag => blkrelay_layout_BLKRELAY_AT_request_tag,
        internal_tag => blkrelay_layout_BLKRELAY_AT_request_internal_tag,
        __data_len => blkrelay_layout_BLKRELAY_AT_request___data_len,
        __sector => blkrelay_layout_BLKRELAY_AT_request___sector,
        bio => blkrelay_layout_BLKRELAY_AT_request_bio,
        biotail => blkrelay_layout_BLKRELAY_AT_request_biotail,
        rq_flags => blkrelay_layout_BLKRELAY_AT_request_rq_flags,
        start_time_ns => blkrelay_layout_BLKRELAY_AT_request_start_time_ns,
    }
    bindings::blk_mq_hw_ctx {
        queue_num => blkrelay_layout_BLKRELAY_AT_blk_mq_hw_ctx_queue_num,
        tags => blkrelay_layout_BLKRELAY_AT_blk_mq_hw_ctx_tags,
        sched_tags => blkrelay_layout_BLKRELAY_AT_blk_mq_hw_ctx_sched_tags,
    }
    bindings::blk_mq_tags {
        nr_tags => blkrelay_layout_BLKRELAY_AT_blk_mq_tags_nr_tags,
        nr_reserved_tags => blkrelay_layout_BLKRELAY_AT_blk_mq_tags_nr_reserved_tags,
    }
    bindings::bio {
        bi_next => blkrelay_layout_BLKRELAY_AT_bio_bi_next,
        bi_private => blkrelay_layout_BLKRELAY_AT_bio_bi_private,
        bi_bdev => blkrelay_layout_BLKRELAY_AT_bio_bi_bdev,
        bi_opf => blkrelay_layout_BLKRELAY_AT_bio_bi_opf,
        bi_flags => blkrelay_layout_BLKRELAY_AT_bio_bi_flags,
        bi_ioprio => blkrelay_layout_BLKRELAY_AT_bio_bi_ioprio,
        bi_io_vec => blkrelay_layout_BLKRELAY_AT_bio_bi_io_vec,
        bi_write_hint => blkrelay_layout_BLKRELAY_AT_bio_bi_write_hint,
        bi_status => blkrelay_layout_BLKRELAY_AT_bio_bi_status,
        bi_iter => blkrelay_layout_BLKRELAY_AT_bio_bi_iter,
    }
    bindings::bvec_iter {
        bi_sector => blkrelay_layout_BLKRELAY_AT_bvec_iter_bi_sector,
        bi_size => blkrelay_layout_BLKRELAY_AT_bvec_iter_bi_size,
    }
    bindings::block_device {
        bd_start_sect => blkrelay_layout_BLKRELAY_AT_block_device_bd_start_sect,
        __bd_flags => blkrelay_layout_BLKRELAY_AT_block_device___bd_flags,
        bd_dev => blkrelay_layout_BLKRELAY_AT_block_device_bd_dev,
        bd_queue => blkrelay_layout_BLKRELAY_AT_block_device_bd_queue,
        bd_nr_sectors => blkrelay_layout_BLKRELAY_AT_block_device_bd_nr_sectors,
    }
    bindings::request_queue {
        mq_ops => blkrelay_layout_BLKRELAY_AT_request_queue_mq_ops,
        id => blkrelay_layout_BLKRELAY_AT_request_queue_id,
        disk => blkrelay_layout_BLKRELAY_AT_request_queue_disk,
        limits => blkrelay_layout_BLKRELAY_AT_request_queue_limits,
        nr_hw_queues => blkrelay_layout_BLKRELAY_AT_request_queue_nr_hw_queues,
    }
    bindings::queue_limits {
        logical_block_size => blkrelay_layout_BLKRELAY_AT_queue_limits_logical_block_size,
    }
    bindings::gendisk {
        major => blkrelay_layout_BLKRELAY_AT_gendisk_major,
        first_minor => blkrelay_layout_BLKRELAY_AT_gendisk_first_minor,
        disk_name => blkrelay_layout_BLKRELAY_AT_gendisk_disk_name,
        part0 => blkrelay_layout_BLKRELAY_AT_gendisk_part0,
        diskseq => blkrelay_layout_BLKRELAY_AT_gendisk_diskseq,
    }
    abi::rchan_buf {
        start => blkrelay_layout_BLKRELAY_AT_rchan_buf_start,
        data => blkrelay_layout_BLKRELAY_AT_rchan_buf_data,
        offset => blkrelay_layout_BLKRELAY_AT_rchan_buf_offset,
        subbufs_produced => blkrelay_layout_BLKRELAY_AT_rchan_buf_subbufs_produced,
        subbufs_consumed => blkrelay_layout_BLKRELAY_AT_rchan_buf_subbufs_consumed,
        chan => blkrelay_layout_BLKRELAY_AT_rchan_buf_chan,
    }
    abi::rchan {
        private_data => blkrelay_layout_BLKRELAY_AT_rchan_private_data,
    }
    abi::rchan_callbacks {
        subbuf_start => blkrelay_layout_BLKRELAY_AT_rchan_callbacks_subbuf_start,
        create_buf_file => blkrelay_layout_BLKRELAY_AT_rchan_callbacks_create_buf_file,
        remove_buf_file => blkrelay_layout_BLKRELAY_AT_rchan_callbacks_remove_buf_file,
    }
    bindings::tracepoint {
        name => blkrelay_layout_BLKRELAY_AT_tracepoint_name,
    }
    bindings::inode {
        i_private => blkrelay_layout_BLKRELAY_AT_inode_i_private,
    }
    bindings::file {
        private_data => blkrelay_layout_BLKRELAY_AT_file_private_data,
    }
    bindings::file_operations {
        owner => blkrelay_layout_BLKRELAY_AT_file_operations_owner,
        llseek => blkrelay_layout_BLKRELAY_AT_file_operations_llseek,
        read => blkrelay_layout_BLKRELAY_AT_file_operations_read,
        write => blkrelay_layout_BLKRELAY_AT_file_operations_write,
        poll => blkrelay_layout_BLKRELAY_AT_file_operations_poll,
        open => blkrelay_layout_BLKRELAY_AT_file_operations_open,
        release => blkrelay_layout_BLKRELAY_AT_file_operations_release,
    }
    bindings::system_time_snapshot {
        cycles => blkrelay_layout_BLKRELAY_AT_system_time_snapshot_cycles,
        systime => blkrelay_layout_BLKRELAY_AT_system_time_snapshot_systime,
        monoraw => blkrelay_layout_BLKRELAY_AT_system_time_snapshot_monoraw,
        cs_id => blkrelay_layout_BLKRELAY_AT_system_time_snapshot_cs_id,
    }
}

/// Numbers that code without kernel types repeats (`filter.rs`, `record.rs`, `probes.rs`).
macro_rules! same {
    ($($number:expr => $constant:ident),+ $(,)?) => {
        $(const _: () = assert!(
            $number == abi::$constant,
            concat!(stringify!($number), " is another number in this kernel"),
        );)+
    };
}

same! {
    filter::REQ_PREFLUSH => blkrelay_values_BLKRELAY_REQ_PREFLUSH,
    filter::REQ_OP_READ => blkrelay_values_BLKRELAY_REQ_OP_READ,
    filter::REQ_OP_WRITE => blkrelay_values_BLKRELAY_REQ_OP_WRITE,
    filter::REQ_OP_FLUSH => blkrelay_values_BLKRELAY_REQ_OP_FLUSH,
    filter::REQ_OP_DISCARD => blkrelay_values_BLKRELAY_REQ_OP_DISCARD,
    filter::REQ_OP_SECURE_ERASE => blkrelay_values_BLKRELAY_REQ_OP_SECURE_ERASE,
    filter::REQ_OP_ZONE_APPEND => blkrelay_values_BLKRELAY_REQ_OP_ZONE_APPEND,
    filter::REQ_OP_WRITE_ZEROES => blkrelay_values_BLKRELAY_REQ_OP_WRITE_ZEROES,
    filter::REQ_OP_ZONES[0] => blkrelay_values_BLKRELAY_REQ_OP_ZONE_OPEN,
    filter::REQ_OP_ZONES[1] => blkrelay_values_BLKRELAY_REQ_OP_ZONE_CLOSE,
    filter::REQ_OP_ZONES[2] => blkrelay_values_BLKRELAY_REQ_OP_ZONE_FINISH,
    filter::REQ_OP_ZONES[3] => blkrelay_values_BLKRELAY_REQ_OP_ZONE_RESET,
    filter::REQ_OP_ZONES[4] => blkrelay_values_BLKRELAY_REQ_OP_ZONE_RESET_ALL,
    record::REQ_OP_DRV_IN => blkrelay_values_BLKRELAY_REQ_OP_DRV_IN,
    record::REQ_OP_DRV_OUT => blkrelay_values_BLKRELAY_REQ_OP_DRV_OUT,
    flight::STS_AGAIN => blkrelay_values_BLKRELAY_STS_AGAIN,
    span::RQF_IO_STAT => blkrelay_values_BLKRELAY_RQF_IO_STAT,
    span::RQF_FLUSH_SEQ => blkrelay_values_BLKRELAY_RQF_FLUSH_SEQ,
    probes::MQ_REQ_RESERVED => blkrelay_values_BLKRELAY_MQ_REQ_RESERVED,
}
