use crate::config::Address;
use wheellock_resp::Value;
pub(crate) struct Malformed(pub(crate) &'static str);
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) address: Address,
    pub(crate) epoch: u64,
    pub(crate) suspect: bool,
    pub(crate) promoted: Option<Address>,
}
#[derive(Default)]
pub(crate) struct Discovery {
    last: Vec<Option<Answer>>,
    address: Option<Address>,
}
fn fields(v: &Value) -> Vec<(String, String)> {
    match v {
        Value::Map(m) => m
            .iter()
            .map(|(k, v)| {
                (k.as_str().unwrap_or_default().to_owned(), v.as_str().unwrap_or_default().to_owned())
            })
            .collect(),
        _ => v
            .as_array()
            .unwrap_or_default()
            .chunks(2)
            .map(|c| {
                (c[0].as_str().unwrap_or_default().to_owned(), c[1].as_str().unwrap_or_default().to_owned())
            })
            .collect(),
    }
}
fn get<'a>(f: &'a [(String, String)], n: &str) -> &'a str {
    f.iter().find(|(k, _)| k == n).map_or("", |(_, v)| v)
}
fn addr(f: &[(String, String)]) -> Result<Address, Malformed> {
    Ok(Address::Tcp {
        host: get(f, "ip").to_owned(),
        port: get(f, "port").parse().map_err(|_| Malformed("port"))?,
    })
}
pub(crate) fn parse_master(v: &Value) -> Result<Answer, Malformed> {
    let f = fields(v);
    let flags = get(&f, "flags");
    Ok(Answer {
        address: addr(&f)?,
        epoch: get(&f, "config-epoch").parse().map_err(|_| Malformed("epoch"))?,
        suspect: flags.contains("down") || flags.contains("failover") || flags.contains("disconnected"),
        promoted: None,
    })
}
pub(crate) fn parse_promoted(v: &Value) -> Result<Option<Address>, Malformed> {
    for r in v.as_array().unwrap_or_default() {
        let f = fields(r);
        if get(&f, "flags").contains("promoted") {
            return addr(&f).map(Some);
        }
    }
    Ok(None)
}
impl Discovery {
    pub(crate) fn heard(&mut self, n: usize, a: Answer) {
        if self.last.len() <= n {
            self.last.resize(n + 1, None);
        }
        self.last[n] = Some(a);
        self.pick();
    }
    pub(crate) fn silent(&mut self, n: usize) {
        if let Some(x) = self.last.get_mut(n) {
            *x = None;
        }
    }
    fn pick(&mut self) {
        let best = self.last.iter().flatten().max_by_key(|a| (a.epoch, a.promoted.is_some()));
        if let Some(b) = best {
            self.address = Some(b.promoted.clone().unwrap_or_else(|| b.address.clone()));
        }
    }
    pub(crate) fn address(&self) -> Option<&Address> {
        self.address.as_ref()
    }
    pub(crate) fn is_suspect(&self) -> bool {
        self.last.iter().flatten().any(|a| a.suspect)
    }
}
