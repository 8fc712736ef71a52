//! The report: one HTML file without scripts and without the network, bars for every figure and curves for latency.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    contestant::Contestant,
    curves,
    figures::{self, Figure},
    results::{Better, Row, Run, Table},
    table::{best_peer, number},
};

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #d5dbe3; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; color: #4a5668; font-weight: 600; }
.metrics { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: .5rem 2rem; }
.bar { display: grid; grid-template-columns: 8rem 1fr 7.5rem; gap: .5rem; align-items: center; height: 1.35rem; }
.bar .name { text-align: right; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; font-size: .85rem; }
.bar .value { font-size: .8rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.track { background: #f0f3f7; height: .85rem; position: relative; }
.fill { height: 100%; background: #a9b4c2; } .ours .fill { background: #1f77b4; } .direct .fill { background: #dfe4ea; outline: 1px dashed #a9b4c2; }
.ours .name { font-weight: 600; } .best .value { font-weight: 700; }
table { border-collapse: collapse; font-size: .85rem; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
th { white-space: nowrap; } .share { white-space: nowrap; margin-right: .7rem; } .fault { color: #a33; } .note { color: #4a5668; font-size: .85rem; } svg { max-width: 100%; height: auto; }
";

/// With links to flame graphs where `graphs` says where they are, as a link to their directory.
pub(super) fn page(run: &Run, graphs: Option<&str>) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "relay: bench of " (run.begun) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "relay beside other forwarders" }
                (about(run))
                @for table in &run.tables { (section(table, graphs)) }
            }
        }
    };
    page.into_string()
}

fn about(run: &Run) -> Markup {
    let machine = &run.machine;
    let memory = machine.memory_kib.map_or(0, |kib| kib >> 20);
    html! {
        p.note {
            "Interleaved rounds, every contestant once in each; a bar is the median, and what stands behind ± half the "
            "distance between the quartiles. CPU of the machine is that of everybody on it, load generator and upstream "
            "included: what the kernel does for a connection is in no process's account. Blue is relay; the dashed bar is "
            "the kernel routing without any forwarder."
        }
        table {
            tr { th { "begun" } td { (run.begun) } }
            tr { th { "command" } td { code { (run.command) } } }
            tr { th { "relay" } td { (run.commit) } }
            tr { th { "machine" } td { (machine.name) ", " (machine.cpus) " × " (machine.cpu) ", " (memory) " GiB, load " (machine.load) } }
            tr { th { "kernel" } td { (machine.kernel) @if let Some(hz) = machine.hz { ", HZ " (hz) } } }
            tr { th { "TCP" } td { "rmem " (machine.tcp_rmem) "; wmem " (machine.tcp_wmem) "; " (machine.congestion) } }
            tr { th { "offload" } td { (machine.offload) } }
        }
    }
}

fn section(table: &Table, graphs: Option<&str>) -> Markup {
    let drawn = curves::draw(table);
    html! {
        h2 { (table.workload) }
        p { (table.about) }
        div.metrics {
            @for metric in 0..table.metrics.len() { div { (bars(table, metric)) } }
        }
        @if let Some(svg) = drawn {
            h3 { "latency by quantile, µs" }
            (PreEscaped(svg))
        }
        (profiles(table, graphs))
        @for row in &table.rows {
            @if let Some(absent) = &row.absent {
                p.note { (row.contestant) " does not take part: " (absent) }
            }
        }
        @for row in table.rows.iter().filter(|row| row.fault.is_some()) {
            p.fault { (row.contestant) ": " (row.fault.as_deref().unwrap_or_default()) }
        }
    }
}

fn profiles(table: &Table, graphs: Option<&str>) -> Markup {
    let rows = table.rows.iter();
    let profiles = rows.filter_map(|row| Some((&row.contestant, row.profile.as_ref()?)));
    let profiles = Vec::from_iter(profiles);
    html! {
        @if !profiles.is_empty() {
            h3 { "where CPU time went, whole machine: functions without those they call, % of busy samples" }
            p.note {
                "Where a machine counts no cycles, as most virtual ones, time with interrupts off shows in the function that turns "
                "them on, such as _raw_spin_unlock_irqrestore and finish_task_switch."
            }
            table {
                @for (contestant, profile) in profiles {
                    tr {
                        th {
                            @match graphs {
                                Some(graphs) => a href=(format!("{graphs}{}", profile.svg)) { (contestant) },
                                None => (contestant),
                            }
                        }
                        td {
                            @for (function, share) in &profile.hottest {
                                span.share { (function) " " (format!("{share:.1}")) } " "
                            }
                        }
                    }
                }
            }
        }
    }
}

fn bars(table: &Table, metric: usize) -> Markup {
    let of = &table.metrics[metric];
    let figures = table.rows.iter().map(|row| (row, figures::of(row, metric)));
    let figures = figures.filter_map(|(row, figure)| Some((row, figure?)));
    let figures: Vec<(&Row, Figure)> = figures.collect();
    let most = figures
        .iter()
        .map(|(_, figure)| figure.median)
        .fold(0.0, f64::max);
    let best = best_peer(table, metric).map(|row| row.contestant.as_str());
    let sense = match of.better {
        Better::More => "more is better",
        Better::Less => "less is better",
    };
    html! {
        h3 { (of.name) ", " (of.unit) " (" (sense) ")" }
        @for (row, figure) in figures {
            @let width = if most > 0.0 { 100.0 * figure.median / most } else { 0.0 };
            div.bar.(class(row)).best[best == Some(row.contestant.as_str())] title=(row.moved_by.as_deref().unwrap_or_default()) {
                div.name { (row.contestant) }
                div.track { div.fill style=(format!("width:{width:.1}%")) {} }
                div.value { (number(figure.median)) " ± " (number(figure.spread)) }
            }
        }
    }
}

fn class(row: &Row) -> &'static str {
    match Contestant::of(&row.contestant) {
        Some(one) if one.is_ours() => "ours",
        Some(one) if !one.is_peer() => "direct",
        _ => "peer",
    }
}
