#!/usr/bin/env python3
"""Writes weft/data/tokenizers/unicode_data.cc: what Unicode says of characters, for the normal forms and lower case.

usage: tools/make_unicode_data.py > weft/data/tokenizers/unicode_data.cc

The data are those of this Python; 3.11 of Debian 12 has Unicode 14, as Debian 12's PCRE2 has.
"""
import sys
import unicodedata as u

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"


def packed(numbers):
    """Groups of 5 bits, the lowest first, one letter each; 32 is added to all but the last of a number."""
    text = []
    for n in numbers:
        while n >= 32:
            text.append(DIGITS[32 + n % 32])
            n //= 32
        text.append(DIGITS[n])
    return "".join(text)


def signed(n):
    return 2 * n if n >= 0 else -2 * n - 1


def mappings(pairs):
    """Character -> characters: distance to the one before, how many, and each as a distance to the one before it."""
    numbers, last, target = [], 0, 0
    for c, values in pairs:
        numbers += [c - last, len(values)]
        last = c
        for value in values:
            numbers.append(signed(value - target))
            target = value
    return numbers


def main():
    hangul = range(0xAC00, 0xD7A4)
    every = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and c not in hangul]
    nfd = {c: u.normalize("NFD", chr(c)) for c in every}
    nfkd = {c: u.normalize("NFKD", chr(c)) for c in every}
    canonical = [(c, [ord(x) for x in nfd[c]]) for c in every if nfd[c] != chr(c)]
    compatible = [(c, [ord(x) for x in nfkd[c]]) for c in every if nfkd[c] != nfd[c]]
    compositions = []
    for c in every:
        parts = u.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<") and u.normalize("NFC", nfd[c]) == chr(c):
            compositions.append((c, [int(p, 16) for p in parts]))
    classes = [(c, [u.combining(chr(c))]) for c in every if u.combining(chr(c))]
    lower = [(c, [ord(x) for x in chr(c).lower()]) for c in every if chr(c).lower() != chr(c)]
    print(f"// Unicode {u.unidata_version}, packed. Written by tools/make_unicode_data.py, which tells how.")
    print('#include "weft/data/tokenizers/unicode_data.h"\n\nnamespace weft {\n\n// clang-format off')
    for name, table in (("canonical_data", canonical), ("compatible_data", compatible),
                        ("composition_data", compositions), ("class_data", classes), ("lower_data", lower)):
        text = packed(mappings(table))
        print(f"std::string_view {name}() {{ return")
        print("\n".join(f'"{text[i:i + 116]}"' for i in range(0, len(text), 116)) + ";}")
    print("// clang-format on\n\n}  // namespace weft")


main()
