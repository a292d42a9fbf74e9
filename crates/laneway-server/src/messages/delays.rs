//! On one machine.

use laneway_delay::{
    Accepted, BoxFuture, Counts, Delays, Extend, Health, Message, MessageId, Query, Submission,
    Timestamp, Withdraw,
};

use super::{Error, List, Listed, Messages};

/// The embedded store. It needs no request id: a client that is not answered asks again with an id or a key of its own.
impl Messages for Delays {
    fn submit<'a>(
        &'a self,
        submissions: Vec<Submission>,
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Accepted, Error>>> {
        Box::pin(async move { each(self.submit(submissions).await) })
    }

    fn extend<'a>(
        &'a self,
        extends: Vec<(MessageId, Extend)>,
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Message, Error>>> {
        Box::pin(async move { each(self.extend_all(extends).await) })
    }

    fn withdraw<'a>(
        &'a self,
        ids: Vec<MessageId>,
        how: Withdraw,
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Message, Error>>> {
        Box::pin(async move { each(self.withdraw_all_with(ids, how).await) })
    }

    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Message, Error>> {
        Box::pin(async move { Ok(self.get(id).await?) })
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Listed, Error>> {
        Box::pin(async move {
            let after = list.after.as_deref().map(str::parse).transpose()?;
            let query = Query {
                after,
                ..list.query.clone()
            };
            let page = self.list(&query).await?;
            Ok(Listed {
                messages: page.messages,
                next: page.next.map(|next| next.to_string()),
                incomplete: Vec::new(),
            })
        })
    }

    fn replay<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Accepted, Error>> {
        Box::pin(async move { Ok(self.replay(id).await?) })
    }

    fn purge<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Ok(self.purge(id).await?) })
    }

    fn purge_dead<'a>(&'a self, topic: Option<&'a str>) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move { Ok(self.purge_dead(topic).await?) })
    }

    fn counts(&self) -> Counts {
        self.counts()
    }

    fn deaths(&self) -> u64 {
        self.deaths()
    }

    fn panics(&self) -> u64 {
        self.panics()
    }

    fn now(&self) -> Timestamp {
        self.now()
    }

    fn report(&self) -> Health {
        self.report()
    }
}

fn each<T>(answers: Vec<Result<T, laneway_delay::Error>>) -> Vec<Result<T, Error>> {
    let answers = answers.into_iter();
    answers.map(|answer| answer.map_err(Error::from)).collect()
}
