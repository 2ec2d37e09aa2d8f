//! Encodes the state of a checkpoint: in full, or as a delta to the previous checkpoint.
//!
//! A delta is the state compressed with the previous state as the dictionary. It handles changes in many places and
//! costs about a microsecond per kilobyte. A full state is written once the deltas since the last one add up to a few
//! times the state's size. Neither the time to load a run nor its size on disk therefore grows with the length of its
//! history.
//!
//! A history entry is compressed by itself with a fixed dictionary, so that a listing reads no states.

use std::cell::RefCell;

use bytes::Bytes;
use lz4_flex::block;

use crate::commit::NextState;
use crate::run::Chain;

/// Maximum total size of a chain's deltas, as a multiple of the newest state's size.
const GROWTH: u64 = 3;
/// Maximum length of a chain, which bounds the reads to load a run.
const MAX_DELTAS: u64 = 64;

const WHOLE: u8 = 0;
const WHOLE_PACKED: u8 = 1;
const DELTA: u8 = 2;

/// An encoded checkpoint, and the chain that it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The encoded state: in full, or a delta.
    pub body: Bytes,
    /// The encoded history entry.
    pub entry: Bytes,
    /// The chain that ends with this checkpoint.
    pub chain: Chain,
}

/// A stored state that cannot be decoded. The text says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a stored state cannot be read: {0}")]
pub struct Unreadable(String);

/// Encodes a checkpoint in full: the first one of a run, or any that starts a new chain.
pub fn whole(checkpoint: &NextState, version: u64) -> Stored {
    Stored {
        body: pack(&checkpoint.state),
        entry: pack_entry(&checkpoint.entry),
        chain: Chain { base: version, bytes: 0 },
    }
}

/// Encodes the checkpoint at `version`. The previous checkpoint has the state `before` and ends `chain`.
pub fn next(before: &[u8], chain: Chain, checkpoint: &NextState, version: u64) -> Stored {
    let state = &checkpoint.state;
    if version.saturating_sub(chain.base) >= MAX_DELTAS {
        return whole(checkpoint, version);
    }
    let body = tagged(DELTA, state.len(), |out| block::compress_into_with_dict(state, out, before));
    let bytes = chain.bytes + body.len() as u64;
    let worth_it = body.len() * 2 <= state.len() + 64;
    if worth_it && bytes <= GROWTH * (state.len() as u64).max(256) {
        let chain = Chain { base: chain.base, bytes };
        return Stored { body: body.into(), entry: pack_entry(&checkpoint.entry), chain };
    }
    whole(checkpoint, version)
}

/// Decodes a chain of stored states, the full one first. Returns the last state.
pub fn read<'a>(bodies: impl IntoIterator<Item = &'a [u8]>) -> Result<Bytes, Unreadable> {
    let mut state: Option<Bytes> = None;
    for body in bodies {
        state = Some(read_one(state.as_deref(), body)?);
    }
    state.ok_or_else(|| Unreadable("there is no checkpoint".to_owned()))
}

/// Decodes one stored state, given the state before it.
pub fn read_one(before: Option<&[u8]>, body: &[u8]) -> Result<Bytes, Unreadable> {
    let broken = |error: block::DecompressError| Unreadable(error.to_string());
    let (&tag, rest) = body.split_first().ok_or_else(|| Unreadable("it is empty".to_owned()))?;
    if tag == WHOLE {
        return Ok(Bytes::copy_from_slice(rest));
    }
    let (length, packed) =
        rest.split_at_checked(4).ok_or_else(|| Unreadable("it is truncated".to_owned()))?;
    let length = u32::from_le_bytes(length.try_into().expect("split at four bytes")) as usize;
    let state = match (tag, before) {
        (WHOLE_PACKED, _) => block::decompress(packed, length).map_err(broken)?,
        (DELTA, Some(before)) => block::decompress_with_dict(packed, length, before).map_err(broken)?,
        (DELTA, None) => return Err(Unreadable("the state it builds on is missing".to_owned())),
        (other, _) => return Err(Unreadable(format!("this version does not know format {other}"))),
    };
    if state.len() != length {
        return Err(Unreadable(format!("{length} bytes were stored, but {} were decoded", state.len())));
    }
    Ok(state.into())
}

/// Decodes a stored history entry.
pub fn read_entry(stored: &[u8]) -> Result<Bytes, Unreadable> {
    read_one(Some(ENTRIES), stored)
}

/// The dictionary of history entries: text that most entries have in common. Stored entries can only be read with
/// exactly this text; a different dictionary needs a different tag.
const ENTRIES: &[u8] = br#""payload":{"input":{"output":{"durationUs":__resolve_wait:__operator:__timer:__error:__start{"version":1,"action":"__auto:","at":"2026-01-01T00:00:00.000000Z","entered":[""],"exited":[""],"transitions":[""]"#;

fn pack_entry(entry: &[u8]) -> Bytes {
    let packed = tagged(DELTA, entry.len(), |out| block::compress_into_with_dict(entry, out, ENTRIES));
    if packed.len() <= entry.len() { packed.into() } else { unpacked(entry) }
}

/// Encodes a full state, compressed if that saves at least an eighth.
fn pack(state: &[u8]) -> Bytes {
    if state.len() >= 512 {
        let packed = tagged(WHOLE_PACKED, state.len(), |out| block::compress_into(state, out));
        if packed.len() * 8 <= state.len() * 7 {
            return packed.into();
        }
    }
    unpacked(state)
}

fn unpacked(bytes: &[u8]) -> Bytes {
    let mut body = Vec::with_capacity(bytes.len() + 1);
    body.push(WHOLE);
    body.extend_from_slice(bytes);
    body.into()
}

/// Returns the tag, the length and the output of `compress` in one buffer.
fn tagged(
    tag: u8,
    length: usize,
    compress: impl FnOnce(&mut [u8]) -> Result<usize, block::CompressError>,
) -> Vec<u8> {
    let stored = u32::try_from(length).expect("a snapshot's limit is far below 4 GiB");
    let most = block::get_maximum_output_size(length);
    // The result stays in the commit, so it is copied out of the worst-case buffer at its exact size.
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < most {
            buffer.resize(most, 0);
        }
        let packed = compress(&mut buffer[..most]).expect("the buffer has room for the worst case");
        let mut body = Vec::with_capacity(HEADER + packed);
        body.push(tag);
        body.extend_from_slice(&stored.to_le_bytes());
        body.extend_from_slice(&buffer[..packed]);
        if buffer.len() > MAX_BUFFER_BYTES {
            *buffer = Vec::new();
        }
        body
    })
}

/// Maximum size of the buffer that a thread keeps, in bytes.
const MAX_BUFFER_BYTES: usize = 256 * 1_024;

thread_local! {
    /// The compression buffer of this thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Size of the tag and the length before the compressed bytes.
const HEADER: usize = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

    use super::{Chain, DELTA, GROWTH, MAX_DELTAS, NextState, next, read, read_entry, read_one, whole};

    /// A chain of three checkpoints and an entry as they were stored when the test was written. Databases contain this
    /// format: it must stay readable.
    #[test]
    fn checkpoint_format_is_fixed() {
        let states = (1..=3).map(|n| format!(r#"{{"version":{n},"context":{{"items":{:?}}}}}"#, [n; 300]));
        let states: Vec<String> = states.collect();
        let first = whole(&checkpoint(states[0].as_bytes()), 0);
        let second = next(states[0].as_bytes(), first.chain, &checkpoint(states[1].as_bytes()), 1);
        let third = next(states[1].as_bytes(), second.chain, &checkpoint(states[2].as_bytes()), 2);
        let entry = r#"{"version":1,"action":"__auto:charge","at":"2026-01-01T00:00:00.000000Z"}"#;
        let packed = whole(&checkpoint(entry.as_bytes()), 0).entry;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let made = [&first.body, &second.body, &third.body, &packed].map(|bytes| hex(bytes)).join("\n");
        let fixed = include_str!("../tests/formats/checkpoints.txt");
        for stored in [&*made, fixed] {
            let stored: Vec<Vec<u8>> = stored.lines().map(unhex).collect();
            let chain = stored[..3].iter().map(Vec::as_slice);
            assert_eq!(read(chain).unwrap(), states[2].as_bytes());
            assert_eq!(read_entry(&stored[3]).unwrap(), entry.as_bytes());
        }
    }

    fn unhex(text: &str) -> Vec<u8> {
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two hex digits");
        (0..text.len()).step_by(2).map(byte).collect()
    }

    fn checkpoint(state: &[u8]) -> NextState {
        NextState { state: state.to_vec().into(), entry: state.to_vec().into(), places: Vec::new() }
    }

    fn states() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let piece = prop_oneof![
            Just(b"{\"amount\":12,\"by\":\"ann\"}".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..400)
        ];
        let state = proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat());
        proptest::collection::vec(state, 1..100)
    }

    proptest! {
        #[test]
        fn any_chain_of_states_reads_back(states in states()) {
            let mut stored = vec![whole(&checkpoint(&states[0]), 0)];
            for (version, pair) in states.windows(2).enumerate() {
                let chain = stored[version].chain;
                stored.push(next(&pair[0], chain, &checkpoint(&pair[1]), version as u64 + 1));
            }
            for (version, state) in states.iter().enumerate() {
                let Chain { base, bytes } = stored[version].chain;
                assert!(version as u64 - base <= MAX_DELTAS);
                assert!(bytes <= GROWTH * (state.len() as u64).max(256));
                let chain = stored[base as usize..=version].iter().map(|stored| &stored.body[..]);
                assert_eq!(&read(chain).unwrap()[..], &state[..]);
                assert_eq!(&read_entry(&stored[version].entry).unwrap()[..], &state[..]);
            }
        }
    }

    #[test]
    fn a_broken_body_is_an_error() {
        let first = whole(&checkpoint(&[b'x'; 2000]), 0);
        assert!(read_one(None, &[]).is_err());
        assert!(read_one(None, &[9, 1, 0, 0, 0, 1]).is_err());
        assert!(read_one(None, &first.body[..4]).is_err());
        let second = next(&[b'x'; 2000], first.chain, &checkpoint(&[b'y'; 2000]), 1);
        assert_eq!(second.body[0], DELTA);
        assert!(read_one(None, &second.body).is_err());
    }

    /// Existing databases contain entries that need exactly this dictionary.
    #[test]
    fn old_history_entries_can_be_read() {
        let entry =
            br#"{"version":7,"action":"APPROVE","at":"2026-05-04T03:02:01Z","entered":["b"],"exited":["a"]}"#;
        let stored = whole(&NextState { entry: entry.to_vec().into(), ..checkpoint(b"{}") }, 0).entry;
        let long_ago: &[u8] =
            b"\x02[\x00\x00\x00\x07r\x00\x177r\x00zAPPROVEr\x00\xdb5-04T03:02:01k\x00\x18bl\x00`[\"a\"]}";
        assert_eq!(&read_entry(long_ago).unwrap()[..], entry);
        assert!(stored.len() < entry.len() * 3 / 4, "{} of {}", stored.len(), entry.len());
    }
}
