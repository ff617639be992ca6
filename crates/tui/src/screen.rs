//! What is on the screen, and what keys do: no input or output.

use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::model::Model;
use crate::number::time;
use crate::sample::Sample;
use crate::view::View;

const KEYS: &str = "q quit   p pause   tab, arrows: view and lines   / filter   ? help";

const HELP: &[&str] = &[
    "q, Ctrl-C        quit",
    "p, space         pause and go on",
    "tab, left, right next or previous view; 1 to 9 choose one",
    "up, down         scroll; page up, page down, home, end",
    "/                show only rows with this text; Esc shows all again",
    "?                this help",
    "",
    "Rates are per second, over the time between two updates. The bars show the latest ones; the tallest is the",
    "highest of its row. - stands for a rate that is not known yet.",
    "",
    "RECEIVED, SENT   frames of the account of a port, as in `brickmoon show ports --account`",
    "LINUX            frames left to Linux; the view Ports has the reasons",
    "LOST             frames that the device lost by its own count",
    "BUSY             share of the time that a worker spends on frames; BREATHS are rounds through its apps",
    "FULL             frames dropped because a link was full",
    "",
    "Red: drops, errors, and what is not up.",
];

/// What a key asks for beyond a change of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    /// Stop the process until the shell continues it.
    Suspend,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub struct Screen {
    pub model: Model,
    pub view: View,
    pub paused: bool,
    filter: String,
    /// Whether keys are part of the filter.
    typing: bool,
    help: bool,
    scroll: usize,
    /// Lines of the view, and how many fit, when last drawn.
    lines: usize,
    fit: usize,
}

impl Screen {
    /// A screen that begins with this view.
    pub fn new(view: View) -> Self {
        Self { view, ..Self::default() }
    }

    /// Handles a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Action::Quit),
                KeyCode::Char('z') => Some(Action::Suspend),
                _ => None,
            };
        }
        if self.typing {
            self.type_filter(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Esc => self.reset(),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(-1),
            KeyCode::Char(digit @ '1'..='9') => self.choose(digit as usize - '1' as usize),
            code => self.scroll(code),
        }
        None
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => self.reset(),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.scroll = 0;
    }

    fn reset(&mut self) {
        (self.typing, self.help) = (false, false);
        self.filter.clear();
        self.scroll = 0;
    }

    fn scroll(&mut self, key: KeyCode) {
        let (last, page) = (self.lines.saturating_sub(self.fit), self.fit.max(1));
        let to = match key {
            KeyCode::Up => self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll + 1,
            KeyCode::PageUp => self.scroll.saturating_sub(page),
            KeyCode::PageDown => self.scroll + page,
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => return,
        };
        self.scroll = to.min(last);
    }

    /// The views that have something to show.
    fn views(&self) -> Vec<View> {
        let sample = self.model.sample();
        View::ALL.into_iter().filter(|view| sample.is_some_and(|sample| view.is_present(sample))).collect()
    }

    fn turn(&mut self, by: isize) {
        let views = self.views();
        let at = views.iter().position(|view| *view == self.view).unwrap_or_default();
        let next = (at as isize + by).rem_euclid(views.len().max(1) as isize);
        self.choose(next as usize);
    }

    fn choose(&mut self, index: usize) {
        if let Some(view) = self.views().get(index) {
            self.view = *view;
            self.help = false;
            self.scroll = 0;
        }
    }

    /// Draws everything; `now` is how long ago `top` was started.
    pub fn draw(&mut self, frame: &mut Frame<'_>, now: Duration) {
        let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
        let [top, tabs, body, bottom] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(self.top(now).style(Style::new().add_modifier(Modifier::REVERSED)), top);
        frame.render_widget(self.tabs(), tabs);
        self.draw_body(frame, body);
        frame.render_widget(self.bottom(), bottom);
    }

    fn top(&self, now: Duration) -> Line<'static> {
        let heading = self.model.sample().map_or("brickmoon".into(), heading);
        let mut spans = vec![Span::raw(format!(" {heading} "))];
        if self.paused {
            spans.push(Span::styled(" PAUSED ", Style::new().bg(Color::Yellow)));
        }
        if let Some(remark) = self.model.remark(now) {
            let color = if self.model.answers() { Color::Yellow } else { Color::Red };
            spans.push(Span::styled(format!(" {remark} "), Style::new().bg(color)));
        }
        Line::from(spans)
    }

    fn tabs(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (index, view) in self.views().into_iter().enumerate() {
            let style = match view == self.view {
                true => Style::new().fg(Color::Green).add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
                false => Style::new(),
            };
            let name = Span::styled(format!("{} {}", index + 1, view.name()), style);
            spans.extend([Span::raw(" "), name, Span::raw(" ")]);
        }
        Line::from(spans)
    }

    fn draw_body(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let lines = if self.help { HELP.iter().map(|line| Line::raw(*line)).collect() } else { self.body() };
        (self.lines, self.fit) = (lines.len(), area.height.into());
        self.scroll = self.scroll.min(self.lines.saturating_sub(self.fit));
        let shown: Vec<_> = lines.into_iter().skip(self.scroll).take(self.fit).collect();
        frame.render_widget(Paragraph::new(shown), area);
    }

    /// The tables of the view, one below the other.
    pub fn body(&self) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for mut panel in self.view.panels(&self.model) {
            if !self.filter.is_empty() {
                panel.filter(&self.filter);
            }
            if !lines.is_empty() {
                lines.push(Line::default());
            }
            lines.extend(panel.lines());
        }
        lines
    }

    fn bottom(&self) -> Line<'static> {
        if self.typing {
            return Line::raw(format!("filter: {}_", self.filter));
        }
        let more = self.lines.saturating_sub(self.scroll + self.fit);
        let more = if more > 0 { format!("   {more} more lines below") } else { String::new() };
        match self.filter.is_empty() {
            true => Line::styled(format!("{KEYS}{more}"), Style::new().fg(Color::DarkGray)),
            false => Line::styled(
                format!("only rows with {:?}; Esc shows all{more}", self.filter),
                Style::new().fg(Color::Yellow),
            ),
        }
    }
}

/// Version, process, time since its start, path and state.
pub fn heading(sample: &Sample) -> String {
    let status = &sample.status;
    let (version, process, up) = (&status.version, status.pid, time(status.uptime_s));
    let state = match (status.ready, status.silent_threads) {
        (_, silent @ 1..) => format!("{silent} threads make no progress"),
        (true, 0) => "ready".into(),
        (false, 0) => "not ready".into(),
    };
    match status.path.as_str() {
        "lua" => format!("brickmoon {version}, Lua program, process {process}, up {up}"),
        path => format!("brickmoon {version}, process {process}, up {up}, path {path}, {state}"),
    }
}

#[cfg(test)]
mod tests;
