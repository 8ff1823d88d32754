//! Go's `sort.Sort`: where an order contradicts itself, or leaves open what comes first, what comes out is what this algorithm
//! makes of it (`sort/zsortinterface.go`: insertion sort for up to twelve, else a quicksort that defeats patterns).

/// Sorts as Go does by an order that need not be one.
pub(super) fn sort<T>(items: &mut [T], less: impl Fn(&T, &T) -> bool) {
    let (count, limit) = (items.len(), usize::BITS - items.len().leading_zeros());
    Sorting { items, less }.quick(0, count, limit);
}

const MAX_INSERTION: usize = 12;
/// From so many on the pivot is a median of medians, and what is nearly sorted is finished by hand.
const LONG: usize = 50;
/// How often neighbours are put right by hand.
const MAX_STEPS: usize = 5;
/// Of medians of medians, all of which were the wrong way round.
const MAX_SWAPS: usize = 4 * 3;

/// What the choice of a pivot has shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hint {
    Unknown,
    Increasing,
    Decreasing,
}

struct Sorting<'t, T, F> {
    items: &'t mut [T],
    less: F,
}

impl<T, F: Fn(&T, &T) -> bool> Sorting<'_, T, F> {
    fn less(&self, a: usize, b: usize) -> bool {
        (self.less)(&self.items[a], &self.items[b])
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.items.swap(a, b);
    }

    /// `limit` is how many bad pivots are put up with.
    fn quick(&mut self, mut from: usize, mut to: usize, mut limit: u32) {
        let (mut was_balanced, mut was_partitioned) = (true, true);
        loop {
            let length = to - from;
            if length <= MAX_INSERTION {
                return self.insert(from, to);
            }
            if limit == 0 {
                return self.heap(from, to);
            }
            if !was_balanced {
                self.break_patterns(from, to);
                limit -= 1;
            }
            let (mut pivot, mut hint) = self.pivot(from, to);
            if hint == Hint::Decreasing {
                self.items[from..to].reverse();
                pivot = (to - 1) - (pivot - from);
                hint = Hint::Increasing;
            }
            if was_balanced && was_partitioned && hint == Hint::Increasing && self.is_nearly_sorted(from, to) {
                return;
            }
            if from > 0 && !self.less(from - 1, pivot) {
                from = self.partition_equal(from, to, pivot);
                continue;
            }
            let middle;
            (middle, was_partitioned) = self.partition(from, to, pivot);
            let (left, right) = (middle - from, to - middle);
            was_balanced = left.min(right) >= length / 8;
            if left < right {
                self.quick(from, middle, limit);
                from = middle + 1;
            } else {
                self.quick(middle + 1, to, limit);
                to = middle;
            }
        }
    }

    fn insert(&mut self, from: usize, to: usize) {
        for at in from + 1..to {
            let mut down = at;
            while down > from && self.less(down, down - 1) {
                self.swap(down, down - 1);
                down -= 1;
            }
        }
    }

    fn sift_down(&mut self, mut root: usize, to: usize, first: usize) {
        while 2 * root + 1 < to {
            let mut child = 2 * root + 1;
            if child + 1 < to && self.less(first + child, first + child + 1) {
                child += 1;
            }
            if !self.less(first + root, first + child) {
                return;
            }
            self.swap(first + root, first + child);
            root = child;
        }
    }

    fn heap(&mut self, from: usize, to: usize) {
        let length = to - from;
        for root in (0..=(length - 1) / 2).rev() {
            self.sift_down(root, length, from);
        }
        for last in (0..length).rev() {
            self.swap(from, from + last);
            self.sift_down(0, last, from);
        }
    }

    /// Puts what is less than the pivot before it. Where the pivot is then, and whether all was in its place.
    fn partition(&mut self, from: usize, to: usize, pivot: usize) -> (usize, bool) {
        self.swap(from, pivot);
        let (mut low, mut high) = (from + 1, to - 1);
        let mut is_partitioned = true;
        loop {
            while low <= high && self.less(low, from) {
                low += 1;
            }
            while low <= high && !self.less(high, from) {
                high -= 1;
            }
            if low > high {
                break;
            }
            is_partitioned = false;
            self.swap(low, high);
            low += 1;
            high -= 1;
        }
        self.swap(high, from);
        (high, is_partitioned)
    }

    /// Puts what equals the pivot before what is greater; nothing is less.
    fn partition_equal(&mut self, from: usize, to: usize, pivot: usize) -> usize {
        self.swap(from, pivot);
        let (mut low, mut high) = (from + 1, to - 1);
        loop {
            while low <= high && !self.less(from, low) {
                low += 1;
            }
            while low <= high && self.less(from, high) {
                high -= 1;
            }
            if low > high {
                return low;
            }
            self.swap(low, high);
            low += 1;
            high -= 1;
        }
    }

    /// Whether all is sorted after a few steps.
    fn is_nearly_sorted(&mut self, from: usize, to: usize) -> bool {
        let mut at = from + 1;
        for _ in 0..MAX_STEPS {
            while at < to && !self.less(at, at - 1) {
                at += 1;
            }
            if at == to {
                return true;
            }
            if to - from < LONG {
                return false;
            }
            self.swap(at, at - 1);
            self.shift(from, at, to);
        }
        false
    }

    /// Brings the lesser of two that were swapped to the left, and the greater one to the right.
    fn shift(&mut self, from: usize, at: usize, to: usize) {
        if at - from >= 2 {
            let mut down = at - 1;
            while down >= 1 && self.less(down, down - 1) {
                self.swap(down, down - 1);
                down -= 1;
            }
        }
        if to - at >= 2 {
            let mut up = at + 1;
            while up < to && self.less(up, up - 1) {
                self.swap(up, up - 1);
                up += 1;
            }
        }
    }

    fn break_patterns(&mut self, from: usize, to: usize) {
        let length = to - from;
        let mut random = length as u64;
        let mask = (1_u64 << (usize::BITS - length.leading_zeros())) - 1;
        let middle = from + length / 4 * 2;
        for at in middle - 1..=middle + 1 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let other = (random & mask) as usize;
            self.swap(at, from + if other >= length { other - length } else { other });
        }
    }

    fn pivot(&self, from: usize, to: usize) -> (usize, Hint) {
        let (quarter, mut swaps) = ((to - from) / 4, 0);
        let mut places = [1, 2, 3].map(|n| from + quarter * n);
        if to - from >= LONG {
            places = places.map(|at| self.median([at - 1, at, at + 1], &mut swaps));
        }
        let pivot = self.median(places, &mut swaps);
        match swaps {
            0 => (pivot, Hint::Increasing),
            MAX_SWAPS => (pivot, Hint::Decreasing),
            _ => (pivot, Hint::Unknown),
        }
    }

    /// The middle one of three places, by what is there.
    fn median(&self, [mut a, mut b, mut c]: [usize; 3], swaps: &mut usize) -> usize {
        let mut order = |a: &mut usize, b: &mut usize| {
            if self.less(*b, *a) {
                *swaps += 1;
                std::mem::swap(a, b);
            }
        };
        order(&mut a, &mut b);
        order(&mut b, &mut c);
        order(&mut a, &mut b);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, below: u32) -> Vec<u32> {
        let mut seed = count as u32 * 7919 + below;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn what_has_an_order_is_in_it() {
        for count in [0, 1, 2, 11, 12, 13, 49, 50, 51, 100, 1000, 5000] {
            for below in [1, 2, 10, 1_000_000] {
                let all = numbers(count, below);
                let mut expected = all.clone();
                expected.sort_unstable();
                let rising = expected.clone();
                let falling: Vec<u32> = rising.iter().rev().copied().collect();
                let waves: Vec<u32> = rising.iter().chain(&falling).copied().collect();
                for mut list in [all, rising, falling] {
                    sort(&mut list, |a, b| a < b);
                    assert_eq!(list, expected, "{count} below {below}");
                }
                let mut sorted = waves.clone();
                sorted.sort_unstable();
                let mut waves = waves;
                sort(&mut waves, |a, b| a < b);
                assert_eq!(waves, sorted);
            }
        }
    }

    #[test]
    fn few_equals_keep_their_order_and_many_do_where_nothing_is_out_of_place() {
        let few: Vec<(u32, usize)> = numbers(12, 3).into_iter().zip(0..).collect();
        let mut sorted = few.clone();
        sort(&mut sorted, |a, b| a.0 < b.0);
        let mut stable = few;
        stable.sort_by_key(|(number, _)| *number);
        assert_eq!(sorted, stable);
        let mut many: Vec<usize> = (0..300).collect();
        sort(&mut many, |_, _| false);
        assert_eq!(many, (0..300).collect::<Vec<_>>());
    }

    #[test]
    fn an_order_that_contradicts_itself_ends() {
        for count in [13, 60, 700] {
            for below in [2, 5, 100] {
                let mut list = numbers(count, below);
                sort(&mut list, |a, b| (a * 7 + b * 13) % 3 != 0);
                let (mut found, mut expected) = (list, numbers(count, below));
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected);
                sort(&mut found, |_, _| true);
            }
        }
    }
}
