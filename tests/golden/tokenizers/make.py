#!/usr/bin/env python3
"""Writes the golden files of SentencePiece and tiktoken, with those libraries (0.2.3 and 0.14.0).

usage: make.py, in a Python with sentencepiece and tiktoken. Texts are those of llama3/cases.json.
"""
import base64
import io
import json
import random
from pathlib import Path

import sentencepiece
import tiktoken

HERE = Path(__file__).parent
TEXTS = [case["text"] for case in json.loads((HERE / "llama3/cases.json").read_text())]
TEXTS += ["<A> B<AB>C", "x<A><A>y <AB", "\u2581under\u2581\u2581score", "a  b   c ", "   ", "\uff21\uff22c \ufb01t ½",
          "tab\tand\nline", "\u2047 \u00a0x", "don't stop, 1234!", "日本語 and 日本語日本語", "zz\U0001F600zz\U0001F600\U0001F600"]
RULES = "".join(f"{a}\t{b}\n" for a, b in [
    ("FF21", "41"), ("FF22", "42"), ("FB01", "66 69"), ("9", "20"), ("A", "20"), ("D", "20"), ("A0", "20"), ("3000", "20"),
    ("BD", "31 2F 32"), ("65 301", "E9"), ("200B", "")])


def dump(path, value):
    path.write_text("[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "\n]\n")


def make_sentencepiece(name, rules=None, **options):
    folder = HERE / "sentencepiece"
    folder.mkdir(exist_ok=True)
    lines = [line for text in TEXTS for line in text.split("\n") if line.strip() and "\0" not in line] * 3
    model = io.BytesIO()
    if rules:
        tsv = folder / "rules.tsv"
        tsv.write_text(rules)
        options["normalization_rule_tsv"] = str(tsv)
    else:
        options["normalization_rule_name"] = "identity"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, hard_vocab_limit=False, num_threads=1, minloglevel=2,
        max_sentence_length=100000, **options)
    if rules:
        tsv.unlink()
    (folder / f"{name}.model").write_bytes(model.getvalue())
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    cases = []
    draws = random.Random(name)
    for text in TEXTS:
        if "\0" in text:
            continue
        ids = tokenizer.encode(text)
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
    for _ in range(60):
        ids = [draws.randrange(tokenizer.get_piece_size()) for _ in range(draws.randrange(12))]
        cases.append({"ids": ids, "decoded": tokenizer.decode(ids)})
    dump(folder / f"{name}.json", cases)
    print(name, tokenizer.get_piece_size(), len(model.getvalue()))


def make_tiktoken():
    folder = HERE / "tiktoken"
    folder.mkdir(exist_ok=True)
    letters = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae]
    byte_of = {chr(b): b for b in letters}
    byte_of |= {chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in letters)}
    model = json.loads((HERE / "gpt2/tokenizer.json").read_text())["model"]
    tokens = [bytes([b]) for b in range(256)]
    for left, right in model["merges"][:400]:
        tokens.append(bytes(byte_of[c] for c in left + right))
    tokens = list(dict.fromkeys(tokens))
    dump(folder / "megatron.json", [{"rank": i, "token_bytes": base64.b64encode(t).decode(),
                                     "token_str": t.decode(errors="replace")} for i, t in enumerate(tokens)])
    (folder / "plain.tiktoken").write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    specials = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
    specials += [f"<SPECIAL_{i}>" for i in range(7, 20)]
    v2 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    cl100k = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
              r"|\s+(?!\S)|\s")
    texts = TEXTS + ["a<s>b</s><SPECIAL_7><SPECIAL_70>", "12345678 12 1"]
    for name, pattern, shift, special in (("megatron", v2, 20, {t: i for i, t in enumerate(specials)}),
                                          ("plain", cl100k, 0, {"<|endoftext|>": len(tokens)})):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks={t: i + shift for i, t in enumerate(tokens)},
                                     special_tokens=special)
        cases = []
        for text in texts:
            ids = encoding.encode(text, allowed_special="all")
            cases.append({"text": text, "ids": ids, "decoded": encoding.decode(ids)})
        draws = random.Random(name)
        for _ in range(60):
            ids = [draws.randrange(len(tokens) + shift) for _ in range(draws.randrange(12))]
            cases.append({"ids": ids, "decoded": encoding.decode(ids)})
        dump(folder / f"{name}_cases.json", cases)


make_sentencepiece("bpe", model_type="bpe", vocab_size=700, byte_fallback=True, remove_extra_whitespaces=False,
                   character_coverage=0.98, user_defined_symbols=["<A>", "<AB>"], split_digits=True)
make_sentencepiece("bpe_suffix", model_type="bpe", vocab_size=500, character_coverage=0.98,
                   treat_whitespace_as_suffix=True, user_defined_symbols=["<A>"], rules=RULES)
make_sentencepiece("unigram", model_type="unigram", vocab_size=500, character_coverage=0.98, rules=RULES,
                   user_defined_symbols=["<A>", "<AB>"])
make_sentencepiece("unigram_bytes", model_type="unigram", vocab_size=700, byte_fallback=True, character_coverage=0.98,
                   add_dummy_prefix=False, remove_extra_whitespaces=False)
make_tiktoken()
