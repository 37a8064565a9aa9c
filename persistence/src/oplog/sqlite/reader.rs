//! The one task of a process that reads: what is asked at the same time goes over one connection together, and the pages of several agents, as
//! when a shard's agents are recovered, are found by one call of SQLite.

use super::generation::{Directory, Held, classify, is_busy};
use super::rows;
use crate::oplog::Error;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Connection, Row};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Pages of one call: one of a few counts, so that each is prepared once and reused.
const BATCHES: [usize; 3] = [32, 8, 2];

/// Questions that are taken from the queue together.
const AT_ONCE: usize = 64;

/// A pause before what could not be read is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// [`rows::READ`] as often, each with its number.
static PAGES: LazyLock<[String; 3]> = LazyLock::new(|| {
    BATCHES.map(|count| {
        let page = |number: usize| rows::READ.replacen("SELECT", &format!("SELECT {number} AS asked,"), 1);
        (0..count).map(page).collect::<Vec<_>>().join("; ")
    })
});

/// What is asked.
#[derive(Clone)]
pub(super) enum Question {
    /// A statement with its arguments.
    Statement(&'static str, SqliteArguments),
    /// The rows of [`rows::READ`].
    Page { agent: String, from: i64, limit: i64 },
}

pub(super) struct Ask {
    pub question: Question,
    /// Not answered by then, it is given up.
    pub until: Instant,
    pub answer: oneshot::Sender<Result<Vec<SqliteRow>, Error>>,
}

/// What SQLite said to one question.
enum Heard {
    Rows(Vec<SqliteRow>),
    /// Asked again it may answer.
    Busy,
    Failed(sqlx::Error),
}

impl From<Result<Vec<SqliteRow>, sqlx::Error>> for Heard {
    fn from(said: Result<Vec<SqliteRow>, sqlx::Error>) -> Self {
        match said {
            Ok(rows) => Self::Rows(rows),
            Err(error) if is_busy(&error) => Self::Busy,
            Err(error) => Self::Failed(error),
        }
    }
}

/// An open generation.
struct Link {
    held: Held,
    connection: SqliteConnection,
}

pub(super) struct ReaderTask {
    directory: Directory,
    link: Option<Link>,
}

impl ReaderTask {
    pub(super) fn new(directory: Directory) -> Self {
        Self { directory, link: None }
    }

    /// Serves until every handle is gone and what they asked is answered.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Ask>) {
        while let Some(first) = queue.recv().await {
            // Callers that were answered together come back together: let them all get in.
            tokio::task::yield_now().await;
            let mut asks = vec![first];
            while let Some(ask) = (asks.len() < AT_ONCE).then(|| queue.try_recv().ok()).flatten() {
                asks.push(ask);
            }
            while !asks.is_empty() {
                asks.retain(|ask| !ask.answer.is_closed());
                asks = self.round(asks).await;
                if !asks.is_empty() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        self.leave().await;
    }

    /// Answers from what is the current generation after the rows were read. Returns what has to be asked again.
    async fn round(&mut self, asks: Vec<Ask>) -> Vec<Ask> {
        let Some(until) = asks.iter().map(|ask| ask.until).max() else { return asks };
        let link = match self.connected(until).await {
            Ok(link) => link,
            Err(error) => return refuse(asks, &error),
        };
        let number = link.held.number;
        let heard = link.hear(&asks).await;
        let superseded = match self.directory.superseded(number) {
            Ok(superseded) => superseded,
            Err(error) => return refuse(asks, &error),
        };
        if superseded {
            self.leave().await;
        }
        let place = self.directory.database(number).display().to_string();
        let mut again = Vec::new();
        for (ask, heard) in asks.into_iter().zip(heard) {
            match heard {
                Heard::Rows(rows) if !superseded => drop(ask.answer.send(Ok(rows))),
                Heard::Failed(error) if !superseded => drop(ask.answer.send(Err(classify(&place, &error)))),
                Heard::Rows(_) | Heard::Failed(_) | Heard::Busy => again.push(ask),
            }
        }
        let now = Instant::now();
        let (late, again) = again.into_iter().partition(|ask| ask.until <= now);
        let what = format!("{}: not readable in time", self.directory.path.display());
        refuse(late, &Error::Unavailable(what));
        again
    }

    async fn connected(&mut self, until: Instant) -> Result<&mut Link, Error> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let held = self.directory.settled(until).await?;
                let connection = self.directory.connect(held.number).await?;
                self.directory.settle()?;
                Link { held, connection }
            }
        };
        Ok(self.link.insert(link))
    }

    async fn leave(&mut self) {
        if let Some(link) = self.link.take() {
            drop(link.connection.close().await);
        }
    }
}

impl Link {
    /// What SQLite says to each question.
    async fn hear(&mut self, asks: &[Ask]) -> Vec<Heard> {
        let mut heard: Vec<_> = asks.iter().map(|_| Heard::Busy).collect();
        let is_page = |at: &usize| matches!(asks[*at].question, Question::Page { .. });
        let (pages, statements): (Vec<usize>, Vec<usize>) = (0..asks.len()).partition(is_page);
        for at in statements {
            heard[at] = self.one(&asks[at].question).await;
        }
        let mut rest = pages.as_slice();
        while let Some(which) = BATCHES.iter().position(|count| *count <= rest.len()) {
            let (batch, others) = rest.split_at(BATCHES[which]);
            rest = others;
            self.pages(which, batch, asks, &mut heard).await;
        }
        for at in rest {
            heard[*at] = self.one(&asks[*at].question).await;
        }
        heard
    }

    async fn one(&mut self, question: &Question) -> Heard {
        let (sql, arguments) = match question.clone() {
            Question::Statement(sql, arguments) => (sql, arguments),
            Question::Page { agent, from, limit } => (rows::READ, rows::arguments!(from, agent, limit)),
        };
        sqlx::query_with(sql, arguments).fetch_all(&mut self.connection).await.into()
    }

    /// Several pages by one call; if that fails, one by one, so that each hears its own.
    async fn pages(&mut self, which: usize, batch: &[usize], asks: &[Ask], heard: &mut [Heard]) {
        let mut arguments = SqliteArguments::default();
        arguments.reserve(3 * batch.len(), 0);
        for at in batch {
            if let Question::Page { agent, from, limit } = &asks[*at].question {
                rows::bind!(arguments, *from, agent.clone(), *limit);
            }
        }
        let ask = sqlx::query_with(AssertSqlSafe(PAGES[which].as_str()), arguments);
        match distributed(ask.fetch_all(&mut self.connection).await, batch.len()) {
            Ok(pages) => {
                for (at, rows) in batch.iter().zip(pages) {
                    heard[*at] = Heard::Rows(rows);
                }
            }
            Err(_) => {
                for at in batch {
                    heard[*at] = self.one(&asks[*at].question).await;
                }
            }
        }
    }
}

/// Each row to the page that it belongs to.
fn distributed(rows: Result<Vec<SqliteRow>, sqlx::Error>, count: usize) -> Result<Vec<Vec<SqliteRow>>, sqlx::Error> {
    let mut pages: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for row in rows? {
        let asked: i64 = row.try_get("asked")?;
        if let Some(page) = usize::try_from(asked).ok().and_then(|asked| pages.get_mut(asked)) {
            page.push(row);
        }
    }
    Ok(pages)
}

/// Answers all of them with `error`; nothing is to be asked again.
fn refuse(asks: Vec<Ask>, error: &Error) -> Vec<Ask> {
    asks.into_iter().for_each(|ask| drop(ask.answer.send(Err(error.clone()))));
    Vec::new()
}
