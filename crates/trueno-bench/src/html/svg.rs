//! A drawing in the making: elements of SVG, with every text escaped.

use std::fmt::Write;

/// Text for HTML and SVG, also within quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that XML cannot hold, not even escaped.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The position of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// The inside of an `svg` element. Units are those of the drawing: it is scaled to its place.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!(r#"<polyline class="{class}" points="{}"/>"#, points.join(" ")));
    }

    pub(crate) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let (anchor, text) = (anchor.name(), escape(text));
        self.add(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#));
    }

    /// A shape at a point, and what it stands for.
    pub(crate) fn shape(&mut self, class: &str, (x, y): (f64, f64), path: &str, meaning: &str) {
        let meaning = escape(meaning);
        self.add(format_args!(
            r#"<path class="{class}" transform="translate({x:.1} {y:.1})" d="{path}" data-tip="{meaning}"><title>{meaning}</title></path>"#
        ));
    }

    pub(crate) fn bar(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), meaning: &str) {
        let meaning = escape(meaning);
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" data-tip="{meaning}"><title>{meaning}</title></rect>"#
        ));
    }

    /// The whole drawing; `id` names it, `meaning` is read to those who do not see it.
    pub(crate) fn finish(self, id: &str, meaning: &str) -> String {
        let (Self { width, height, body }, meaning) = (self, escape(meaning));
        format!(
            "<svg class=\"plot\" id=\"{id}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{meaning}\">\n{body}</svg>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_text() {
        assert_eq!(escape(r#"<a href="x">&'"#), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
        assert_eq!(escape("a\u{1}b\u{1b}[31m"), "a\u{fffd}b\u{fffd}[31m");
        let mut svg = Svg::new(10.0, 10.0);
        svg.text("t", (0.0, 0.0), Anchor::Start, "</svg><script>");
        let text = svg.finish("x", "\" onload=\"");
        assert!(!text.contains("<script>") && !text.contains("\" onload"), "{text}");
    }
}
