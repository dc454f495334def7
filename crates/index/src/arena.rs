//! Where nodes and strips live: pages whose places are reused at once, and given back when a page is empty.
//!
//! Growing never moves an item and freeing leaves no tombstone, so no step under the index's lock costs more than a page.

/// Items per page.
pub(crate) const PAGE: usize = 256;

/// Items with numbers. A number means a later item once its item is gone.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    /// By page: items, and places to be used again. Never longer than [`PAGE`].
    pages: Vec<Vec<Option<T>>>,
    /// By page: the places to be used again.
    free: Vec<Vec<u8>>,
    /// Pages with room, each once.
    roomy: Vec<u32>,
    live: usize,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), free: Vec::new(), roomy: Vec::new(), live: 0 }
    }
}

impl<T> Arena<T> {
    /// Items that live.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// One more than the largest number an item has, rounded up to whole pages.
    pub(crate) fn bound(&self) -> usize {
        self.pages.len() * PAGE
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        let page_index = match self.roomy.last() {
            Some(index) => *index,
            None => {
                let index = self.pages.len() as u32;
                self.pages.push(Vec::new());
                self.free.push(Vec::new());
                self.roomy.push(index);
                index
            }
        };
        self.live += 1;
        let (places, free) = (&mut self.pages[page_index as usize], &mut self.free[page_index as usize]);
        let place = match free.pop() {
            Some(place) => {
                places[place as usize] = Some(item);
                u32::from(place)
            }
            None => push(places, item),
        };
        if free.is_empty() && places.len() == PAGE {
            self.roomy.pop();
        }
        page_index * PAGE as u32 + place
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let (page_index, place) = split(number);
        let (places, free) = (self.pages.get_mut(page_index)?, &mut self.free[page_index]);
        let item = places.get_mut(place)?.take()?;
        let was_full = free.is_empty() && places.len() == PAGE;
        self.live -= 1;
        free.push(place as u8);
        if free.len() == places.len() {
            (*places, *free) = (Vec::new(), Vec::new());
        }
        if was_full {
            self.roomy.push(page_index as u32);
        }
        Some(item)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (page, place) = split(number);
        self.pages.get(page)?.get(place)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (page, place) = split(number);
        self.pages.get_mut(page)?.get_mut(place)?.as_mut()
    }

    /// Two items with different numbers, the first to be changed.
    pub(crate) fn get_two(&mut self, number: u32, other: u32) -> (Option<&mut T>, Option<&T>) {
        let ((page, place), (other_page, other_place)) = (split(number), split(other));
        if page == other_page {
            let two = self.pages.get_mut(page).and_then(|places| places.get_disjoint_mut([place, other_place]).ok());
            return two.map_or((None, None), |[one, other]| (one.as_mut(), other.as_ref()));
        }
        let two = self.pages.get_disjoint_mut([page, other_page]).ok();
        two.map_or((None, None), |[one, other]| {
            (one.get_mut(place).and_then(Option::as_mut), other.get(other_place).and_then(Option::as_ref))
        })
    }
}

fn split(number: u32) -> (usize, usize) {
    (number as usize / PAGE, number as usize % PAGE)
}

/// Adds an item to a page; where it is.
fn push<T>(places: &mut Vec<Option<T>>, item: T) -> u32 {
    if places.len() == places.capacity() {
        // A small index has a small page; a page never moves more than itself.
        places.reserve_exact(places.len().clamp(4, PAGE - places.len().min(PAGE - 4)));
    }
    places.push(Some(item));
    (places.len() - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_and_empty_pages_are_given_back() {
        let mut arena = Arena::default();
        let numbers: Vec<_> = (0..3 * PAGE).map(|item| arena.insert(item)).collect();
        assert_eq!((arena.len(), arena.bound()), (3 * PAGE, 3 * PAGE));
        for number in &numbers[PAGE / 2..2 * PAGE] {
            assert_eq!(arena.remove(*number), Some(*number as usize));
            assert_eq!(arena.remove(*number), None);
        }
        assert!(arena.pages[1].capacity() == 0, "the middle page is empty");
        assert!(arena.get(numbers[PAGE]).is_none() && arena.get(numbers[0]) == Some(&0));
        for item in 0..PAGE + PAGE / 2 {
            let number = arena.insert(item);
            assert_eq!(arena.get_mut(number), Some(&mut { item }));
        }
        assert_eq!((arena.len(), arena.bound()), (3 * PAGE, 3 * PAGE), "no page was added");
        arena.insert(0);
        assert_eq!(arena.bound(), 4 * PAGE);
    }
}
