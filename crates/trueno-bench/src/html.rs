//! The report: one HTML page with its plots, which needs nothing else.

mod against_c_lz4;
mod axis;
mod bars;
mod engine_style;
mod labels;
mod lines;
mod scatter;
mod svg;
mod tables;

use crate::document::{Along, Direction, Document, Mean, Stage};
use crate::engines::cpu::TRUENO_CPU;
use crate::engines::{BAR, NVCOMP, ON_GPU, TRUENO_GPU, TRUENO_GPU_ZSTD, TRUENO_KERNEL};
use crate::quantity::{self, counted, figure as digits, threads};
use scatter::runs_on_gpu;
use svg::escape;

/// Engines of both kinds are in one plot.
const WHAT_IS_TIMED_ON_GPUS: &str = "trueno-gpu and trueno-gpu-zstd are whole batches with the transfers to the GPU and back. \
     trueno-kernel, trueno-kernel-zstd and nvCOMP's engines are kernels alone, on pages in device memory.";

/// Draws the whole page.
#[must_use]
pub fn page(document: &Document) -> String {
    let sections = [
        header(document),
        tiles(document),
        ratio_section(document),
        against_section(document),
        scaling_section(document),
        stages_section(document),
        tables_section(document),
        how_section(document),
    ];
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>trueno-zram bench: {}</title>
<style>
{}</style>
</head>
<body>
<main>
{}</main>
<div id="tip" aria-hidden="true"></div>
<script>
{}</script>
</body>
</html>
"#,
        escape(&document.machine.cpu.model),
        include_str!("html/style.css"),
        sections.concat(),
        include_str!("html/script.js"),
    )
}

fn header(document: &Document) -> String {
    let machine = &document.machine;
    let gpu = match (&machine.gpus[..], why_no_gpu(document)) {
        ([], Some(why)) => format!("none: {why}"),
        ([], None) => "none".to_owned(),
        (gpus, _) => gpus.join(", "),
    };
    let facts = [
        (
            "Processor",
            format!(
                "{}, {}, {}",
                machine.cpu.model,
                threads(machine.cpu.hardware_threads),
                machine.cpu.instruction_set
            ),
        ),
        ("GPU", gpu),
        ("Corpora", document.corpora.iter().map(|corpus| corpus.name.as_str()).collect::<Vec<_>>().join(", ")),
    ];
    let facts: String =
        facts.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(value))).collect();
    format!(
        "<header>\n<h1>Page compression, side by side</h1>\n<button id=\"theme\" type=\"button\" hidden>Dark</button>\n\
         <dl class=\"facts\">\n{facts}<dt>Command</dt><dd><code>{}</code></dd>\n<dt>Measured</dt><dd>{} by trueno-zram {}</dd>\n</dl>\n</header>\n",
        escape(&document.command_line),
        escape(&document.date),
        machine.version,
    )
}

fn tiles(document: &Document) -> String {
    let ours = |engine: &str| document.means.iter().rfind(|mean| mean.engine == engine);
    let tile = |figure: String, unit: &str, name: &str, text: String, against: String| {
        format!(
            "<div class=\"tile\"><b>{figure}<small>{unit}</small></b><span><span class=\"name {}\">{name}</span> {text}{against}</span></div>\n",
            engine_style::class(name)
        )
    };
    let of_mean = |mean: &Mean| {
        let on =
            if ON_GPU.contains(&mean.engine.as_str()) { String::new() } else { format!(", {}", threads(mean.threads)) };
        let mut all = String::new();
        for direction in Direction::BOTH {
            let (figure, text) = (digits(mean.gbps(direction)), format!("{}{on}", direction.name()));
            let against = mean.quotient(BAR).map(|quotient| digits(quotient.speed(direction)));
            all += &tile(figure, " GB/s", &mean.engine, text, times_c_lz4(against));
        }
        let against = times_c_lz4(mean.quotient(BAR).map(|quotient| format!("{:.3}", quotient.ratio)));
        all + &tile(format!("{:.2}", mean.ratio), "", &mean.engine, "ratio".into(), against)
    };
    let tiles: String = [TRUENO_GPU, TRUENO_GPU_ZSTD, TRUENO_CPU].into_iter().filter_map(ours).map(of_mean).collect();
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

fn times_c_lz4(quotient: Option<String>) -> String {
    quotient.map_or(String::new(), |quotient| format!("<br>{quotient} × C lz4"))
}

/// The reason that the GPU did not run.
fn why_no_gpu(document: &Document) -> Option<&str> {
    let left_out = document.left_out.iter().find(|left_out| left_out.engine == TRUENO_GPU)?;
    Some(&left_out.why)
}

fn figure(title: &str, caption: &str, plot: &str) -> String {
    format!("<figure>\n<figcaption><b>{title}</b>{caption}</figcaption>\n{plot}</figure>\n")
}

fn both(title: &str, caption: &str, draw: impl Fn(Direction) -> String) -> String {
    let figures: String = Direction::BOTH
        .into_iter()
        .map(|direction| {
            let (first, rest) = direction.name().split_at(1);
            figure(&format!("{}{rest}{title}", first.to_uppercase()), caption, &draw(direction))
        })
        .collect();
    format!("<div class=\"grid\">\n{figures}</div>\n")
}

/// The engines that ran, as they look in all plots.
fn legend(document: &Document) -> String {
    let ran = |engine: &&str| document.means.iter().any(|mean| mean.engine == **engine);
    let key = |engine: &str, fill: &str| {
        let (class, outline) = (engine_style::class(engine), engine_style::outline(engine, 5.5));
        format!(
            "<svg viewBox=\"-8 -8 16 16\" aria-hidden=\"true\"><path class=\"key {class}{fill}\" d=\"{outline}\"/></svg>"
        )
    };
    let mut items: String = engine_style::ENGINES
        .into_iter()
        .filter(ran)
        .map(|engine| format!("<li>{}{engine}</li>\n", key(engine, "")))
        .collect();
    let all = document.run.threads.get();
    if all > 1 {
        let hollow = key("trueno-cpu", "").replace("class=\"key ", "fill-opacity=\"0\" class=\"key ");
        items +=
            &format!("<li>{hollow}hollow: 1 thread</li>\n<li>{}filled: {all} threads</li>\n", key("trueno-cpu", ""));
    }
    format!("<ul class=\"legend\">\n{items}</ul>\n")
}

fn ratio_section(document: &Document) -> String {
    let caption = "Up and to the right is better. Small: one corpus. Large: geometric mean.";
    let has_kernels = document.means.iter().any(|mean| mean.engine == TRUENO_KERNEL || mean.engine == NVCOMP);
    let note = if has_kernels { format!("<p class=\"note\">{WHAT_IS_TIMED_ON_GPUS}</p>\n") } else { String::new() };
    format!(
        "<h2>Throughput against ratio</h2>\n{}{note}{}",
        legend(document),
        both("", caption, |direction| scatter::draw(document, direction))
    )
}

fn against_section(document: &Document) -> String {
    if !document.bars.contains(&BAR) {
        return "<h2>Against C lz4</h2>\n<p class=\"note\">C lz4 was not measured.</p>\n".to_owned();
    }
    let on = threads(document.run.threads.get());
    let caption = format!("One mark per corpus, on {on}; the stroke and the figure are geometric means.");
    format!(
        "<h2>Against C lz4</h2>\n<p class=\"muted\">Quotients of neighbouring timings, which hold on a machine whose speed changes.</p>\n{}",
        both(", times C lz4", &caption, |direction| against_c_lz4::draw(document, direction))
    )
}

fn scaling_section(document: &Document) -> String {
    let on = threads(document.run.threads.get());
    let crossing = match document.crossing {
        None => {
            let why = why_no_gpu(document).unwrap_or("no GPU was measured");
            format!("No crossing point between CPU and GPU: {}.", escape(why))
        }
        Some(crossing) => {
            let from = |pages: Option<usize>| {
                pages.map_or("in no batch measured".into(), |pages| format!("from {} on", quantity::pages(pages)))
            };
            format!(
                "The GPU is faster than all threads of the CPU {} compressing, {} decompressing.",
                from(crossing.compress_pages),
                from(crossing.decompress_pages)
            )
        }
    };
    let batch = format!("All corpora mixed, {on}.");
    format!(
        "<h2>Scaling with the batch</h2>\n<p class=\"note\">{crossing}</p>\n{}<h2>Scaling with threads</h2>\n{}",
        both(", by batch size", &batch, |direction| lines::draw(document, Along::Batch, direction)),
        both(
            ", by threads",
            "All corpora mixed. Dotted: trueno-cpu, if each thread added as much as the first.",
            |direction| { lines::draw(document, Along::Threads, direction) }
        )
    )
}

fn stages_section(document: &Document) -> String {
    let (gpu_stages, cpu_stages): (Vec<&Stage>, Vec<&Stage>) =
        document.stages.iter().partition(|stage| runs_on_gpu(&stage.engine));
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for stage in &document.stages {
        let name = match bars::class(stage.stage) {
            "s-code" => "encode, decode",
            "s-move" => "moving blocks, memory outside the cache",
            _ => stage.stage,
        };
        if !keys.contains(&(bars::class(stage.stage), name)) {
            keys.push((bars::class(stage.stage), name));
        }
    }
    let legend: String = keys
        .iter()
        .map(|(class, name)| format!("<li><span class=\"swatch {class}\"></span>{}</li>\n", escape(name)))
        .collect();
    let cpu = both(
        " on the CPU, one thread",
        "The codec alone on pages in the cache, and what a whole batch takes beyond that.",
        |direction| bars::draw(&cpu_stages, direction, "stages-cpu"),
    );
    let on_gpu = if gpu_stages.is_empty() {
        let why = why_no_gpu(document).map_or(String::new(), |why| format!(": {why}"));
        format!("<p class=\"note\">No stages of the GPU{}.</p>\n", escape(&why))
    } else {
        let caption = "By events on the device. Stages of different batches overlap: a call takes less than their sum.";
        both(" on the GPU", caption, |direction| bars::draw(&gpu_stages, direction, "stages-gpu"))
    };
    format!("<h2>Time per stage</h2>\n<ul class=\"legend\">\n{legend}</ul>\n{cpu}{on_gpu}")
}

fn tables_section(document: &Document) -> String {
    let details = |title: &str, table: String| format!("<details>\n<summary>{title}</summary>\n{table}</details>\n");
    format!(
        "<h2>Figures</h2>\n<p class=\"muted\">Geometric means over {}.</p>\n{}{}{}{}{}",
        counted(document.corpora.len(), "corpus", "corpora"),
        tables::means(document),
        details("Every corpus", tables::rows(document)),
        details("By batch size", tables::scaling(document, Along::Batch)),
        details("By threads", tables::scaling(document, Along::Threads)),
        details("By stage", tables::stages(document)),
    )
}

fn how_section(document: &Document) -> String {
    let same_filled: usize = document.corpora.iter().map(|corpus| corpus.same_filled).sum();
    let mut points = vec![
        "Every engine does the same job: a batch of 4 KiB pages into blocks, one per page, packed one after the other with an \
         index, and back. Rivals have one context per thread and take the same chunks as trueno-cpu."
            .to_owned(),
        format!(
            "Same-filled pages ({} here) are counted and left out for all engines; a page that does not shrink counts 4,096 bytes.",
            quantity::count(same_filled)
        ),
        format!(
            "{}; in each, all engines take turns. Speeds are medians, in 10⁹ uncompressed bytes per second; \
             quotients are medians over the rounds of two neighbouring timings.",
            counted(document.run.rounds, "round", "rounds")
        ),
        "Every engine's output was decoded and compared, page by page, before it was timed.".to_owned(),
        "c-lz4 is C lz4's fast encoder with a reused state; lz4-flex is lz4_flex in its safe form; zstd-1, zstd-3 and zstd-9 are libzstd at that level; \
         zram-lz4 is the kernel's zram, through the block layer; memcpy copies the pages, which shows the limit of memory."
            .to_owned(),
        WHAT_IS_TIMED_ON_GPUS.to_owned(),
    ];
    points
        .extend(document.left_out.iter().map(|left_out| format!("{} is left out: {}.", left_out.engine, left_out.why)));
    let points: String = points.iter().map(|point| format!("<li>{}</li>\n", escape(point))).collect();
    format!("<h2>What is compared, and how</h2>\n<ul class=\"how\">\n{points}</ul>\n")
}

#[cfg(test)]
pub(crate) mod tests;
