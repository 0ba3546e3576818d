//! Reports of made-up runs: with a GPU, and with hostile names.

use std::num::NonZeroUsize;

use super::*;
use crate::document::{CorpusFacts, Crossing, LeftOut, Point, Quotient, Row, RunSettings};

const HARM: &str = "</title><script>alert('1')</script>\" onload=\"x&amp;";

/// A run of all engines on two corpora, on a machine with a GPU.
pub(crate) fn document(threads: usize) -> Document {
    let speeds = [
        ("c-lz4", 0.9, 4.0),
        ("trueno-cpu", 1.0, 5.0),
        ("lz4-flex", 0.8, 2.5),
        ("zstd-1", 0.3, 0.9),
        ("zstd-3", 0.2, 0.8),
        ("zstd-9", 0.1, 0.8),
        ("zram-lz4", 0.7, 2.2),
        ("memcpy", 9.0, 9.5),
    ];
    let (mut rows, mut quotients, mut scaling, mut stages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (corpus, factor) in [(HARM, 1.0), ("b", 1.3)] {
        let mut add = |engine: &str, threads: usize, ratio: f64, compress: f64, decompress: f64| {
            let (corpus, engine) = (corpus.to_owned(), engine.to_owned());
            let (compress_gbps, decompress_gbps) = (compress, decompress);
            rows.push(Row {
                corpus,
                engine,
                threads,
                pages: 8192,
                same_filled: 3,
                ratio,
                compress_gbps,
                decompress_gbps,
                note: String::new(),
            });
            let Row { corpus, engine, .. } = rows[rows.len() - 1].clone();
            let (compress, decompress) = (compress / 0.9, decompress / 4.0);
            let bar_threads = threads;
            quotients.push(Quotient { corpus, engine, threads, bar: BAR, bar_threads, ratio, compress, decompress });
        };
        for used in if threads == 1 { vec![1] } else { vec![1, threads] } {
            for (engine, compress, decompress) in speeds {
                let ratio = factor * if engine == "memcpy" { 1.0 / factor } else { 2.6 };
                add(engine, used, ratio, compress * used as f64, decompress * used as f64);
            }
        }
        add("trueno-gpu", threads, 2.7 * factor, 21.0, 24.0);
        add("nvcomp-lz4", 1, 2.4 * factor, 45.0, 150.0);
        add("trueno-gpu-zstd", threads, 3.9 * factor, 20.0, 23.0);
        add("nvcomp-zstd", 1, 3.8 * factor, 15.0, 55.0);
        add("trueno-kernel", 1, 2.7 * factor, 300.0, 530.0);
    }
    for (engine, least, most) in [("trueno-cpu", 1.0, 8.0), ("c-lz4", 0.9, 7.0), ("trueno-gpu", 0.2, 21.0)] {
        for (pages, share) in [(16, 0.0), (1024, 0.5), (65_536, 1.0)] {
            let (compress_gbps, engine) = (least + share * (most - least), engine.to_owned());
            scaling.push(Point { along: Along::Batch, engine, threads, pages, compress_gbps, decompress_gbps: 3.0 });
        }
    }
    for engine in ["trueno-cpu", "c-lz4", "memcpy"] {
        let (engine, pages) = (engine.to_owned(), 65_536);
        scaling.push(Point { along: Along::Threads, engine, threads, pages, compress_gbps: 1.0, decompress_gbps: 3.0 });
    }
    for direction in Direction::BOTH {
        for (engine, stage, ns_per_page) in [
            ("trueno-cpu", "same-filled test", 3.0),
            ("trueno-cpu", "encode", 4100.0),
            (TRUENO_GPU, "to the GPU", 75.0),
            (TRUENO_GPU, "kernel", 13.0),
            (TRUENO_GPU, "back", 30.0),
        ] {
            stages.push(Stage { engine: engine.to_owned(), direction, threads, pages: 65_536, stage, ns_per_page });
        }
    }
    let corpora = [HARM, "b"].map(|name| CorpusFacts {
        name: name.to_owned(),
        pages_in_all: 131,
        same_filled: 3,
        distinct_pages: 128,
        variants: 64,
    });
    let run = RunSettings { rounds: 7, pages: 8192, threads: NonZeroUsize::new(threads).unwrap() };
    let mut document = Document {
        command_line: format!("trueno-zram bench '{HARM}'"),
        corpora: corpora.into(),
        rows,
        quotients,
        scaling,
        stages,
        crossing: Some(Crossing { compress_pages: Some(1024), decompress_pages: None }),
        left_out: vec![LeftOut { engine: HARM.into(), why: HARM.into() }],
        ..Document::new("bench", run, &[BAR], &[])
    };
    document.finish_rows();
    document
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn a_gpu_has_its_marks_stages_and_crossing() {
    let html = page(&document(8));
    assert_eq!(
        count(&html, "class=\"mark e-trueno-gpu\""),
        2 * (2 + 2),
        "two corpora, against ratio and C lz4, both ways"
    );
    assert_eq!(count(&html, "class=\"mark e-nvcomp-lz4\""), 2 * (2 + 2), "filled, though on one thread");
    assert_eq!(count(&html, "class=\"mark e-trueno-gpu-zstd\""), 2 * (2 + 2), "both algorithms");
    assert_eq!(count(&html, "class=\"mark e-nvcomp-zstd\""), 2 * (2 + 2));
    assert_eq!(count(&html, "class=\"mark e-trueno-kernel\""), 2 * (2 + 2));
    assert_eq!(count(&html, "class=\"mark point e-trueno-gpu\""), 2 * 3);
    for direction in Direction::BOTH {
        assert!(html.contains(&format!("id=\"stages-gpu-{}\"", direction.name())));
    }
    assert_eq!(count(&html, "class=\"bar s-kernel\""), 2);
    assert!(html.contains(
        "faster than all threads of the CPU from 1,024 pages on compressing, in no batch measured decompressing"
    ));
    assert!(!html.contains("No stages of the GPU"));
}

#[test]
fn one_thread_leaves_no_mark_hollow() {
    let html = page(&document(1));
    assert_eq!(count(&html, " hollow\""), 0);
    assert!(!html.contains("hollow: 1 thread"));
    assert!(page(&document(8)).contains("hollow: 1 thread"));
}

#[test]
fn escapes_html_in_names() {
    let html = page(&document(8));
    assert_eq!(count(&html, "<script>"), 1, "our own");
    assert_eq!(count(&html, "onload"), count(&html, "&quot; onload=&quot;x&amp;amp;"));
    assert_eq!(count(&html, "</title><script>"), 0);
}

#[test]
fn no_number_is_left_out_of_a_drawing() {
    for threads in [1, 8] {
        let html = page(&document(threads));
        for nonsense in ["NaN", "inf\"", "=\"inf", "-inf"] {
            assert!(!html.contains(nonsense), "{nonsense}");
        }
    }
}
