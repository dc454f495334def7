//! What a name means that workers list for different models.
//!
//! The rule: a model comes before an adapter. Where anybody serves a name as a model, its own or another name of it,
//! whoever does so gets requests for it, each with the blocks of its own base model, in whatever order they were added;
//! whoever lists the name as an adapter gets none, as that would be another model's answer. Where there are only adapters,
//! the base model of the first decides, and those of other base models get none. What is shown of the name is what the
//! worker says whose own model it is, else the first.

use std::collections::BTreeMap;

use super::introspect::Card;

/// The card that says what each name means.
pub(super) struct Names<'a>(BTreeMap<&'a str, &'a Card>);

/// How much a card has to say about its name, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It is the name of the base model.
    Own,
    /// It is one more name of the base model.
    Alias,
    Adapter,
}

fn standing(card: &Card) -> Standing {
    match &card.adapter {
        Some(_) => Standing::Adapter,
        None if card.name == card.base => Standing::Own,
        None => Standing::Alias,
    }
}

impl<'a> Names<'a> {
    /// Of every card of every worker, in the order of addition.
    pub(super) fn of(cards: impl Iterator<Item = &'a Card>) -> Self {
        let mut names: BTreeMap<&str, &Card> = BTreeMap::new();
        for card in cards {
            let known = names.entry(&card.name).or_insert(card);
            if standing(card) < standing(known) {
                *known = card;
            }
        }
        Self(names)
    }

    /// What the name of `card` means; `None` where that is another model than this card's.
    pub(super) fn meaning(&self, card: &Card) -> Option<&'a Card> {
        let meaning = *self.0.get(card.name.as_str())?;
        let agrees = match (&meaning.adapter, &card.adapter) {
            (None, None) => true,
            (Some(_), Some(_)) => meaning.base == card.base,
            (None, Some(_)) | (Some(_), None) => false,
        };
        agrees.then_some(meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str, base: &str, is_adapter: bool) -> Card {
        let adapter = is_adapter.then(|| name.to_owned());
        Card { name: name.to_owned(), base: base.to_owned(), adapter, max_model_len: None }
    }

    /// In any order of the cards: the base model that `x` is shown with, and the base models of those who get requests for it.
    #[track_caller]
    fn means(cards: &[Card], shown: &str, asked: &[&str]) {
        for turn in 0..cards.len() {
            let turned: Vec<&Card> = cards[turn..].iter().chain(&cards[..turn]).collect();
            let names = Names::of(turned.iter().copied());
            let agreeing: Vec<_> = cards.iter().filter_map(|card| Some((names.meaning(card)?, card))).collect();
            assert!(agreeing.iter().all(|(meaning, _)| meaning.base == shown), "{turned:?}");
            assert_eq!(agreeing.iter().map(|(_, card)| card.base.as_str()).collect::<Vec<_>>(), asked, "{turned:?}");
        }
    }

    #[test]
    fn a_model_is_hidden_by_nobody_who_lists_its_name_among_others() {
        means(&[card("x", "loopy", false), card("x", "x", false)], "x", &["loopy", "x"]);
        means(&[card("x", "loopy", true), card("x", "x", false)], "x", &["x"]);
        means(&[card("x", "loopy", true), card("x", "m", false)], "m", &["m"]);
        means(&[card("x", "m", true), card("x", "n", false), card("x", "x", false)], "x", &["n", "x"]);
    }

    #[test]
    fn an_adapter_belongs_to_the_base_model_of_the_first_that_lists_it() {
        let cards = [card("x", "m", true), card("x", "n", true), card("x", "m", true)];
        let names = Names::of(cards.iter());
        assert!(names.meaning(&cards[1]).is_none());
        assert!([0, 2].iter().all(|at| names.meaning(&cards[*at]).is_some_and(|meaning| meaning.base == "m")));
    }

    #[test]
    fn among_other_names_of_models_the_first_is_shown_and_all_are_asked() {
        let cards = [card("x", "m", false), card("x", "n", false)];
        let names = Names::of(cards.iter());
        assert!(cards.iter().all(|card| names.meaning(card).is_some_and(|meaning| meaning.base == "m")));
    }
}
