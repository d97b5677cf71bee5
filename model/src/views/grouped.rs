//! Reads reductions of a view page by page: of all rows of a range, or by groups of keys.

use json::JsonText;
use kv_api::{Database, Transaction};

use super::group::{Reduced, ViewGroup};
use super::groups::Groups;
use super::left_out::LeftOut;
use super::request::{Grouping, Resume, ViewRequest};
use super::tree::ViewTree;
use super::upkeep::is_gone;
use super::window::Window;
use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::feed::seq::Seq;

/// Maximum number of groups in a page.
const GROUPS_AT_ONCE: usize = 500;

/// A group of rows and its reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReducedRow {
    /// The group's key; `null` without groups.
    pub key: JsonText,
    /// The reduction, or the error of the reduce function.
    pub value: Reduced,
}

/// A page of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReducedPage {
    /// The sequence up to which the view is built.
    pub seq: Seq,
    /// The groups. A page that is not the last may be empty.
    pub rows: Vec<ReducedRow>,
    /// The documents left out of the view.
    pub left_out: LeftOut,
    /// The request for the rest; `None` after the last page.
    pub next: Option<ViewRequest>,
}

impl<D: Database> Documents<D> {
    /// Brings a view up to date and reads its first page of reductions. Continue with
    /// [`view_reductions`](Self::view_reductions) and the page's `next`.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views) and [`view_reductions`](Self::view_reductions).
    pub async fn reduce_view(
        &self,
        group: &ViewGroup,
        view: &str,
        request: &ViewRequest,
        grouping: Grouping,
    ) -> Result<ReducedPage> {
        loop {
            self.update_views(group).await?;
            match self.view_reductions(group, view, request, grouping).await {
                Err(error) if is_gone(&error) && group.view(view).is_some() => {}
                page => return page,
            }
        }
    }

    /// Reads a page of reductions without an update. `skip` and `limit` count groups; documents are not
    /// included.
    ///
    /// # Errors
    /// 404 if the database is gone, the group was never built, or it has no such view, or no reduce function;
    /// `bad_request` as for [`view_rows`](Self::view_rows).
    pub async fn view_reductions(
        &self,
        group: &ViewGroup,
        view: &str,
        request: &ViewRequest,
        grouping: Grouping,
    ) -> Result<ReducedPage> {
        let reduced = |view: &usize| group.views().get(*view).is_some_and(|view| view.reduce.is_some());
        let view = group.view(view).filter(reduced).ok_or_else(|| Error::not_found(NotFound::Index))?;
        group.check(request)?;
        self.read_batch(GROUPS_AT_ONCE, |tx, most| async move {
            let (head, upto) = self.built_view(&tx, group).await?;
            let (keys, number) = (self.keys(), head.number);
            let tree = ViewTree { tx: &tx, keys, group, secret: &head.secret, number, view };
            let mut page = tree.page_of_groups(request, grouping, most).await?;
            page.seq = upto.seq;
            page.left_out = self.left_out(&tx, number, view, upto, request.partition.as_deref()).await?;
            Ok(page)
        })
        .await
    }
}

impl<T: Transaction> ViewTree<'_, T> {
    /// Reads a page of at most this many groups, including skipped ones, and of as many of the requested keys.
    async fn page_of_groups(&self, request: &ViewRequest, grouping: Grouping, most: usize) -> Result<ReducedPage> {
        let mut reading = Reading {
            page: ReducedPage { seq: Seq::ZERO, rows: Vec::new(), left_out: LeftOut::default(), next: None },
            request: request.clone(),
            seen: 0,
        };
        let resume = request.resume.clone().unwrap_or_default();
        let order = self.order(request);
        // Unlike rows, groups follow the order of the keys even with `descending`, as in CouchDB.
        for at in resume.key..request.ranges() {
            let key = request.key_of(at, false);
            let mut window = Window::of(request, key.as_ref(), &order);
            if let Some(bound) = resume.bound.as_ref().filter(|_| at == resume.key) {
                match request.descending {
                    true => window.high = window.high.min(bound.clone()),
                    false => window.low = window.low.max(bound.clone()),
                }
            }
            // Keys without rows also take time.
            if at - resume.key >= most {
                reading.stop(at, &window);
                break;
            }
            if matches!(grouping, Grouping::None | Grouping::Level(0)) {
                self.read_whole(&window, &mut reading).await?;
                continue;
            }
            let groups = Groups::new(self, grouping, &order, window, key);
            if let Some(left) = self.read_groups(groups, &mut reading, most).await? {
                reading.stop(at, &left);
                break;
            }
        }
        Ok(reading.page)
    }

    /// Reads all rows of a range as one group.
    async fn read_whole(&self, window: &Window, reading: &mut Reading) -> Result<()> {
        if reading.is_full() || window.is_empty() {
            return Ok(());
        }
        let cover = self.cover_window(window, &window.low, &window.high).await?;
        if cover.count() > 0 && reading.takes() {
            let value = self.sum(cover).await?;
            reading.page.rows.extend(value.map(|value| ReducedRow { key: JsonText::null(), value }));
        }
        Ok(())
    }

    /// Reads groups. Returns the rest of their range if the page ends before it.
    async fn read_groups(
        &self,
        mut groups: Groups<'_, T>,
        reading: &mut Reading,
        most: usize,
    ) -> Result<Option<Window>> {
        while !reading.is_full() {
            let is_enough = reading.is_long_enough() || groups.has_to_read() && reading.seen >= most;
            if let Some(left) = is_enough.then(|| groups.left()).flatten() {
                return Ok(Some(left));
            }
            let Some(group) = groups.next().await? else { break };
            if reading.takes() {
                let key = group.key.clone();
                let value = self.reduce_group(group).await?;
                reading.page.rows.extend(value.map(|value| ReducedRow { key, value }));
            }
        }
        Ok(None)
    }
}

/// A page of groups while it is read.
struct Reading {
    page: ReducedPage,
    request: ViewRequest,
    /// Number of groups so far, including skipped ones.
    seen: usize,
}

impl Reading {
    fn is_full(&self) -> bool {
        self.request.limit.is_some_and(|limit| self.page.rows.len() as u64 >= limit)
    }

    fn is_long_enough(&self) -> bool {
        self.request.at_once.is_some_and(|most| self.page.rows.len() >= most)
    }

    /// Counts the next group. Returns whether it belongs to the page.
    fn takes(&mut self) -> bool {
        self.seen += 1;
        let skipped = self.request.skip > 0;
        self.request.skip -= u64::from(skipped);
        !skipped
    }

    /// Ends the page before this range.
    fn stop(&mut self, key: usize, window: &Window) {
        let limit = self.request.limit.map(|limit| limit.saturating_sub(self.page.rows.len() as u64));
        let bound = Some(if window.descending { window.high.clone() } else { window.low.clone() });
        let resume = Some(Resume { key, after: None, bound });
        self.page.next = Some(ViewRequest { limit, resume, ..self.request.clone() });
    }
}
