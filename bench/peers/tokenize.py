#!/usr/bin/env python3
"""Encodes a text with Hugging Face's `tokenizers` on one thread: the peer of bench_tokenize.

  TOKENIZERS_PARALLELISM=false python3 bench/peers/tokenize.py TOKENIZER_JSON TEXT [IDS]

Prints one JSON line, from processor time; IDS gets the ids as 32-bit numbers. The text is encoded whole, once, with a cache that has met no word,
as Weft does; and line by line with encode_batch, which may be faster. The better of both counts.
"""
import array
import json
import sys
import time

import tokenizers

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8", newline="").read()
megabytes = len(text.encode()) / 1e6

begin = time.process_time()
ids = tokenizer.encode(text, add_special_tokens=False).ids
whole = megabytes / (time.process_time() - begin)
if len(sys.argv) > 3:
    array.array("i", ids).tofile(open(sys.argv[3], "wb"))
del ids

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
lines = text.splitlines(keepends=True)
begin = time.process_time()
tokenizer.encode_batch_fast(lines, add_special_tokens=False)
batch = megabytes / (time.process_time() - begin)
print(json.dumps({"version": tokenizers.__version__, "mb_per_s": max(whole, batch), "whole": whole, "batch": batch}))
