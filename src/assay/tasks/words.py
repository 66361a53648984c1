"""Everyday words: keys of needles, and words with a category for labelling."""

import functools
import re

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.text import english

CATEGORIES = {
    "animal": (
        "badger beaver camel cheetah dolphin donkey eagle ferret giraffe hamster heron jaguar kangaroo lizard moose "
        "octopus otter panther pelican penguin rabbit raccoon salmon squirrel tortoise walrus weasel zebra"
    ).split(),
    "fruit": (
        "apple apricot avocado banana blackberry blueberry cherry coconut cranberry fig grape grapefruit guava kiwi "
        "lemon lime mango melon nectarine orange papaya peach pear pineapple plum pomegranate raspberry strawberry"
    ).split(),
    "tool": (
        "anvil axe chisel clamp crowbar drill file hacksaw hammer hatchet jack ladder mallet pickaxe plane pliers "
        "rake ratchet sander saw scissors screwdriver shovel sickle spanner trowel vise wrench"
    ).split(),
    "country": (
        "Argentina Australia Austria Belgium Brazil Canada Chile Denmark Egypt Finland France Germany Greece Hungary "
        "India Ireland Italy Japan Kenya Mexico Morocco Norway Peru Poland Portugal Spain Sweden Turkey"
    ).split(),
    "instrument": (
        "accordion bagpipe banjo bassoon bugle castanets cello clarinet cornet cymbal drum fiddle flute guitar "
        "harmonica harp lute mandolin oboe organ piano piccolo saxophone tambourine trombone trumpet tuba violin"
    ).split(),
    "clothing": (
        "apron bathrobe belt blouse boots cape cardigan coat dress gloves hat hoodie jacket jeans kilt mittens "
        "pajamas scarf shirt shorts skirt slippers socks suit sweater trousers tuxedo vest"
    ).split(),
}
NOUNS = (
    "acorn anchor basket beacon bicycle blanket bottle bridge bucket butterfly cabbage camera candle canyon carpet "
    "carrot castle cathedral chimney circus compass copper cottage cricket crystal curtain daisy desert diamond "
    "dragon eagle emerald engine falcon feather festival forest fountain galaxy garden ginger glacier guitar hammock "
    "harbor hazelnut helmet honey horizon island ivory jacket jasmine jungle kettle kitchen ladder lantern lemon "
    "lighthouse lobster magnet maple marble meadow mirror monkey mountain mushroom napkin nutmeg oyster paddle parrot "
    "pebble pencil pepper pigeon pillow pirate pocket potato pumpkin pyramid rabbit rainbow ribbon river rocket "
    "saddle sailor salmon sandal saturn scarf seagull shovel silver spider spinach stadium sunset teapot temple "
    "thunder tiger tomato tractor trumpet tulip tunnel turtle umbrella valley velvet village violin volcano waffle "
    "walnut weasel whistle willow window winter wizard zebra"
).split()


@functools.cache
def vocabulary() -> list[str]:
    """Some thousand plain words of five to twelve letters, in lower case: those above and those of the English text."""
    told = [*NOUNS, *(word for words in CATEGORIES.values() for word in words), english().text]
    return sorted({word for text in told for word in re.findall(r"(?<![\w'-])[a-z]{5,12}(?![\w'-])", text.lower())})


def draw_keys(rng: np.random.Generator, n: int) -> list[str]:
    """n different keys: single nouns if there are enough, else pairs such as `walnut-harbor`.

    Raises AssayError where even pairs are too few.
    """
    if n <= len(NOUNS):
        return [NOUNS[k] for k in rng.permutation(len(NOUNS))[:n]]
    return draw_pairs(rng, n)


def draw_pairs(rng: np.random.Generator, n: int) -> list[str]:
    """n different pairs of nouns. Raises AssayError where there are too few."""
    pairs = len(NOUNS) ** 2
    if n > pairs:
        raise AssayError(f"there are {pairs:,} different keys at most, {n:,} were asked for")
    return [f"{NOUNS[k // len(NOUNS)]}-{NOUNS[k % len(NOUNS)]}" for k in rng.choice(pairs, n, replace=False)]


def draw_numbers(rng: np.random.Generator, n: int, digits: int) -> list[str]:
    """n numbers of exactly `digits` digits, different from one another where there are enough of them."""
    low, high = 10 ** (digits - 1), 10**digits
    if n <= (high - low) // 2:
        drawn: dict[int, None] = {}
        while len(drawn) < n:
            drawn.update(dict.fromkeys(rng.integers(low, high, n - len(drawn)).tolist()))
        return [str(number) for number in drawn]
    return [str(number) for number in rng.integers(low, high, n)]


def invented_names(rng: np.random.Generator, n: int) -> list[str]:
    """n different names of three syllables that nobody bears, such as `Velmora`.

    Raises AssayError where there are too few.
    """
    size = len(_SYLLABLES)
    if n > size**3:
        raise AssayError(f"there are {size**3:,} different names at most, {n:,} were asked for")
    drawn = rng.choice(size**3, n, replace=False).tolist()
    return [
        (_SYLLABLES[k % size] + _SYLLABLES[k // size % size] + _SYLLABLES[k // size**2]).capitalize() for k in drawn
    ]


_SYLLABLES = [c + v + e for c in "bdfgklmnprstvz" for v in "aeiou" for e in ("", "n", "r")]
