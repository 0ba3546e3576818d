//! Runs `trueno-zram bench` on small input: rows against independent counts, the report against the rows, errors.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use trueno_test_pages::{PAGE_SIZE, Page, corpus, oracle};
use trueno_zram_core::gpu::gpu_available;
use trueno_zram_core::{Algorithm, PageCodec};

const ROW_FIELDS: [&str; 8] =
    ["compress_gbps", "corpus", "decompress_gbps", "engine", "pages", "ratio", "same_filled_left_out", "threads"];

/// The engines that run on a GPU.
const ON_GPU: [&str; 6] =
    ["trueno-gpu", "trueno-gpu-zstd", "trueno-kernel", "trueno-kernel-zstd", "nvcomp-lz4", "nvcomp-zstd"];

/// Two files of real pages with same-filled ones among them; the second ends within a page.
struct Input {
    folder: TempDir,
    files: [PathBuf; 2],
    pages: [Vec<Page>; 2],
}

fn input() -> Input {
    let folder = TempDir::new().unwrap();
    let pages = |name: &str, count| {
        let corpus = corpus::ALL.iter().find(|corpus| corpus.name == name).unwrap();
        let mut pages = corpus.pages[..count].to_vec();
        pages.insert(3, [0; PAGE_SIZE]);
        pages.push([0xab; PAGE_SIZE]);
        pages
    };
    let pages = [pages("redis", 20), pages("rustc", 30)];
    let files = ["first.bin", "second & <odd>.bin"].map(|name| folder.path().join(name));
    fs::write(&files[0], pages[0].as_flattened()).unwrap();
    fs::write(&files[1], [pages[1].as_flattened(), &[1, 2, 3]].concat()).unwrap();
    Input { folder, files, pages }
}

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trueno-zram")).arg("bench").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The eight bytes that a page is made of, by the plainest test there is.
fn is_same_filled(page: &Page) -> bool {
    page.chunks(8).all(|word| word == &page[..8])
}

/// A small run with its report.
fn run() -> (Input, Value, String) {
    let input = input();
    let report = input.folder.path().join("report.html");
    let mut args =
        vec!["--json", "--rounds", "2", "--pages", "64", "--threads", "2", "--html", report.to_str().unwrap()];
    args.extend(input.files.iter().map(|file| file.to_str().unwrap()));
    let output = bench(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = serde_json::from_slice(&output.stdout).unwrap();
    (input, json, fs::read_to_string(report).unwrap())
}

#[test]
fn rows_are_what_an_independent_count_gives() {
    let (input, json, _) = run();
    let rows = json["rows"].as_array().unwrap();
    for row in rows {
        let fields: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ROW_FIELDS);
        for speed in ["compress_gbps", "decompress_gbps"] {
            assert!(row[speed].as_f64().is_some_and(|gbps| gbps > 0.0 && gbps.is_finite()), "{row}");
        }
    }
    for (name, pages) in ["first", "second & <odd>"].into_iter().zip(&input.pages) {
        let differing: Vec<&Page> = pages.iter().filter(|page| !is_same_filled(page)).collect();
        let same_filled = pages.len() - differing.len();
        // Batches are filled with the same pages, rotated.
        let rotated = |page: &Page, times: usize| {
            let mut page = *page;
            page.rotate_left(272 * times);
            page
        };
        let differing: Vec<Page> = (0..64 / differing.len())
            .flat_map(|times| differing.iter().map(move |page| rotated(page, times)))
            .collect();
        let ratio = |len: &mut dyn FnMut(&Page) -> usize| {
            let held: usize = differing.iter().map(|page| len(page).min(PAGE_SIZE)).sum();
            (differing.len() * PAGE_SIZE) as f64 / held as f64
        };
        let mut codec = PageCodec::new(Algorithm::Lz4).unwrap();
        let expected = [
            ("c-lz4", ratio(&mut |page| oracle::c_lz4_compress(page).len())),
            ("trueno-cpu", ratio(&mut |page| codec.compress(page, &mut [0; PAGE_SIZE]).unwrap().bytes().len())),
            ("lz4-flex", ratio(&mut |page| oracle::flex_compress(page).len())),
            ("zstd-1", ratio(&mut |page| zstd::bulk::compress(page, 1).unwrap().len())),
            ("zstd-3", ratio(&mut |page| zstd::bulk::compress(page, 3).unwrap().len())),
            ("zstd-9", ratio(&mut |page| zstd::bulk::compress(page, 9).unwrap().len())),
            ("memcpy", 1.0),
        ];
        for (engine, ratio) in expected {
            for threads in [1, 2] {
                let mut of_engine = rows
                    .iter()
                    .filter(|row| row["corpus"] == name && row["engine"] == engine && row["threads"] == threads);
                let row = of_engine.next().unwrap_or_else(|| panic!("no row for {name}, {engine}, {threads}"));
                assert!(of_engine.next().is_none(), "two rows for {name}, {engine}, {threads}");
                assert_eq!(row["pages"], differing.len(), "{row}");
                assert_eq!(row["same_filled_left_out"], same_filled, "{row}");
                assert!((row["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9, "{row}, and not {ratio}");
            }
        }
    }
}

#[test]
fn the_rest_stands_beside_the_rows() {
    let (_, json, _) = run();
    for part in [
        "machine",
        "command",
        "command_line",
        "corpora",
        "quotients",
        "means",
        "scaling",
        "stages",
        "crossing",
        "left_out",
    ] {
        assert!(json.get(part).is_some(), "{part}");
    }
    assert_eq!((&json["schema"], &json["command"], &json["status"]), (&1.into(), &"bench".into(), &"ok".into()));
    assert!(json["machine"]["cpu"]["hardware_threads"].as_u64().is_some_and(|threads| threads > 0));
    let ran: BTreeSet<&str> =
        json["rows"].as_array().unwrap().iter().map(|row| row["engine"].as_str().unwrap()).collect();
    let left_out = json["left_out"].as_array().unwrap();
    assert!(!ran.contains("zram-lz4"), "nobody asked for --rival zram");
    for engine in ON_GPU.into_iter().chain(["zram-lz4"]) {
        let why = left_out.iter().find(|left_out| left_out["engine"] == engine).map(|left_out| &left_out["why"]);
        assert_ne!(why.is_some(), ran.contains(engine), "{engine} runs or has a reason not to: {why:?}");
    }
    assert_eq!(json["crossing"].is_null(), !gpu_available());
    // C lz4 against itself.
    for quotient in json["quotients"].as_array().unwrap().iter().filter(|quotient| quotient["engine"] == "c-lz4") {
        assert_eq!([&quotient["ratio"], &quotient["compress"], &quotient["decompress"]], [1.0, 1.0, 1.0]);
    }
    let points =
        |along: &str| json["scaling"].as_array().unwrap().iter().filter(|point| point["along"] == along).count();
    assert!(points("batch") >= 2 * 2, "16 and 64 pages, two engines at least");
    assert!(points("threads") >= 2 * 3, "1 and 2 threads, three engines at least");
}

#[test]
fn the_report_is_one_well_formed_page_that_loads_nothing() {
    let (_, _, html) = run();
    assert!(html.starts_with("<!DOCTYPE html>"));
    assert_eq!(unbalanced(&html), None);
    for loads in ["http:", "https:", "src=", "href=", "url(", "@import", "<link", "<img", "<iframe", "<object"] {
        assert!(!html.contains(loads), "{loads}");
    }
    assert!(html.contains("second &amp; &lt;odd&gt;") && !html.contains("<odd>"), "names are escaped");
}

#[test]
fn every_plot_has_a_mark_for_each_row() {
    let (_, json, html) = run();
    let rows = json["rows"].as_array().unwrap();
    let count =
        |part: &str, holds: &dyn Fn(&Value) -> bool| json[part].as_array().unwrap().iter().filter(|v| holds(v)).count();
    for direction in ["compress", "decompress"] {
        assert_eq!(marks(&html, &format!("ratio-{direction}"), "mark"), rows.len());
        assert_eq!(marks(&html, &format!("ratio-{direction}"), "mean"), count("means", &|_| true));
        let compared = |row: &Value| {
            let on_gpu = ON_GPU.contains(&row["engine"].as_str().unwrap());
            row["engine"] != "c-lz4" && row["engine"] != "memcpy" && (row["threads"] == 2 || on_gpu)
        };
        assert_eq!(marks(&html, &format!("against-{direction}"), "mark"), count("quotients", &compared));
        for along in ["batch", "threads"] {
            let points = count("scaling", &|point| point["along"] == along);
            assert_eq!(marks(&html, &format!("{along}-{direction}"), "mark"), points, "{along}");
        }
        let stages = |gpu: bool| {
            count("stages", &|stage| {
                stage["direction"] == direction && ON_GPU.contains(&stage["engine"].as_str().unwrap()) == gpu
            })
        };
        assert_eq!(marks(&html, &format!("stages-cpu-{direction}"), "bar"), stages(false));
        if gpu_available() {
            assert_eq!(marks(&html, &format!("stages-gpu-{direction}"), "bar"), stages(true));
        } else {
            assert!(html.contains("No stages of the GPU"));
        }
    }
}

/// Elements of a class in the drawing of that name, each with a place inside it.
fn marks(html: &str, id: &str, class: &str) -> usize {
    let start = html.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no plot {id}"));
    let drawing = html[start..].split("</svg>").next().unwrap();
    let size = drawing.split("viewBox=\"0 0 ").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let (width, height) = size.split_once(' ').unwrap();
    let (width, height): (f64, f64) = (width.parse().unwrap(), height.parse().unwrap());
    let of_class: Vec<&str> = drawing.lines().filter(|line| line.contains(&format!("class=\"{class} "))).collect();
    for mark in &of_class {
        let place = mark.split("translate(").nth(1).and_then(|rest| rest.split(')').next());
        let Some((x, y)) = place.and_then(|place| place.split_once(' ')) else {
            assert_eq!(class, "bar", "{mark}");
            continue;
        };
        let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
        assert!((0.0..width).contains(&x) && (0.0..height).contains(&y), "{id}: {mark}");
    }
    of_class.len()
}

/// The first tag that does not match, if any.
fn unbalanced(html: &str) -> Option<String> {
    let (mut open, mut rest) = (Vec::new(), html);
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        let end = tag.find('>')?;
        let inside = &tag[..end];
        rest = &tag[end + 1..];
        let name = inside.split([' ', '\n', '/']).find(|part| !part.is_empty()).unwrap_or_default();
        if inside.contains('<') {
            return Some(format!("<{inside}>"));
        }
        if inside.starts_with('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}>"));
            }
        } else if ["style", "script"].contains(&name) {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close)? + close.len()..];
        } else if !inside.ends_with('/') && !inside.starts_with('!') && !["meta", "br"].contains(&name) {
            open.push(name);
        }
    }
    open.pop().map(|name| format!("<{name}> is left open"))
}

#[test]
fn the_check_of_tags_finds_what_is_wrong() {
    assert_eq!(unbalanced("<!DOCTYPE html><p>a<br>b <i>c</i><line/></p>"), None);
    assert!(unbalanced("<p><i></p></i>").is_some() && unbalanced("<p>").is_some() && unbalanced("</p>").is_some());
}

#[test]
fn the_tables_fit_a_terminal_of_80_columns() {
    let input = input();
    let output = bench(&["--rounds", "1", "--pages", "30", "--threads", "2", input.files[0].to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let widest =
        table.lines().filter(|line| !line.contains("left out:")).max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= 80, "{widest}");
    let same_filled = input.pages[0].iter().filter(|page| is_same_filled(page)).count();
    let head = table.lines().next().unwrap();
    let counts = [input.pages[0].len() - same_filled, same_filled].map(|count| format!(" {count} "));
    assert!(counts.iter().all(|count| head.contains(count)), "{table}");
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let input = input();
    let same_filled = input.folder.path().join("zeros.bin");
    fs::write(&same_filled, [0; 4 * PAGE_SIZE]).unwrap();
    let first = input.files[0].to_str().unwrap();
    let fails = |args: &[&str], code: i32, word: &str| {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let said = text(&output.stderr);
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(code == 2 || said.lines().count() == 1, "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    };
    fails(&["/nowhere/at/all.bin"], 1, "/nowhere/at/all.bin");
    fails(&[same_filled.to_str().unwrap()], 1, "zeros.bin");
    let note = input.folder.path().join("note.txt");
    fs::write(&note, "a note").unwrap();
    fails(&[note.to_str().unwrap()], 1, "note.txt: ");
    fails(&[first, first], 1, "first");
    fails(&["--html", "/nowhere/at/all.html", first], 1, "/nowhere/at/all.html");
    fails(&["--rival", "snappy=x", first], 2, "snappy");
    fails(&["--rounds", "0", first], 2, "--rounds");
    fails(&["--backend", "interpreter", first], 2, "interpreter");
    fails(&["--rival", "nvcomp=/nowhere/libnvcomp.so", first], 1, "nvCOMP");
    if !gpu_available() {
        fails(&["--backend", "gpu", first], 1, "--backend gpu");
    }
}

#[test]
fn the_released_tool_links_neither_rivals_nor_test_pages() {
    let tree = |features: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--package", "trueno-zram"]);
        let output = cargo.args(features).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let (released, with_rivals) = (tree(&[]), tree(&["--features", "rivals"]));
    let has = |tree: &str, package: &str| tree.lines().any(|line| line.starts_with(package));
    assert!(!has(&released, "lz4-sys "));
    assert!(has(&with_rivals, "lz4-sys "));
    // A published crate depends on published ones only.
    assert!(!has(&released, "trueno-test-") && !has(&with_rivals, "trueno-test-"));
}

#[test]
fn help_says_what_the_rivals_do_to_the_machine() {
    let output = bench(&["--help"]);
    let help = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for name in ["--rival", "nvcomp=PATH", "zram", "`rivals`"] {
        assert!(help.contains(name), "{name} is in {help}");
    }
}
