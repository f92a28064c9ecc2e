#include "weft/data/tokenizers/bpe.h"

#include <algorithm>
#include <cstring>

#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

constexpr std::string_view space_symbol = "\xe2\x96\x81";  // U+2581
constexpr std::size_t few = 64;                            // so many symbols are looked through again after each merge
constexpr std::uint32_t none = 0xffffffff;

// Where the first run of U+2581 begins that follows something else; npos: nowhere.
std::size_t next_word(std::string_view text, std::size_t from) {
  for (std::size_t at = text.find(space_symbol, from); at != std::string_view::npos;
       at = text.find(space_symbol, at + space_symbol.size())) {
    if (at > from && !text.substr(0, at).ends_with(space_symbol)) return at;
  }
  return std::string_view::npos;
}

}  // namespace

Bpe::Scratch::Scratch() : words_(slots) {}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<Merge>& merges, const BpeRules& rules)
    : vocabulary_(&vocabulary), merges_(merges), rules_(rules) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    byte_ids_[byte] = vocabulary.find(std::string_view(&text, 1));
  }
  const auto& bytes = rules.byte_tokens;
  has_byte_tokens_ = std::any_of(bytes.begin(), bytes.end(), [](std::int32_t id) { return id != no_token; });
  separate_ = separates_at_spaces(merges);
}

bool Bpe::separates_at_spaces(const std::vector<Merge>& merges) const {
  if (rules_.of_bytes || rules_.ignore_merges) return false;
  const auto& bytes = rules_.byte_tokens;
  const bool no_unknown = std::find(bytes.begin(), bytes.end(), no_token) == bytes.end();
  // What is left out, or fused, would join what stands beside it.
  const bool apart = no_unknown || (!has_byte_tokens_ && rules_.unknown != no_token && !rules_.fuse_unknown);
  if (!apart || vocabulary_->find(space_symbol) == no_token) return false;
  return std::none_of(merges.begin(), merges.end(), [&](const Merge& merge) {
    return next_word(vocabulary_->text(merge.result), 0) != std::string_view::npos;
  });
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (!separate_) return encode_word(piece, scratch, ids);
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = std::min(next_word(piece, at), piece.size());
    encode_word(piece.substr(at, end - at), scratch, ids);
    at = end;
  }
}

void Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (word.empty()) return;
  Scratch::Word* known = nullptr;
  if (word.size() <= Scratch::longest) {
    known = &scratch.words_[hash_of_bytes(word) % Scratch::slots];
    if (known->size == word.size() && std::memcmp(known->bytes.data(), word.data(), word.size()) == 0) {
      ids.insert(ids.end(), known->ids.begin(), known->ids.begin() + known->count);
      return;
    }
  }
  const std::size_t begin = ids.size();
  const std::int32_t whole = rules_.ignore_merges ? vocabulary_->find(word) : no_token;
  if (whole != no_token) {
    ids.push_back(whole);
  } else {
    std::vector<std::int32_t>& symbols = scratch.symbols_;
    symbols.clear();
    cut(word, symbols);
    if (symbols.size() <= few) {
      merge_few(scratch);
    } else {
      merge_many(scratch);
    }
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }
  const std::size_t count = ids.size() - begin;
  if (!known || count > Scratch::most) return;
  known->size = static_cast<std::uint16_t>(word.size());
  known->count = static_cast<std::uint16_t>(count);
  std::memcpy(known->bytes.data(), word.data(), word.size());
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), known->ids.begin());
}

void Bpe::cut(std::string_view word, std::vector<std::int32_t>& symbols) const {
  // Unknown characters wait for what follows: they may be fused, and byte tokens pass them, as in Hugging Face's library.
  bool waiting = false;
  const auto put_waiting = [&] {
    if (waiting) symbols.push_back(rules_.unknown);
    waiting = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t size = rules_.of_bytes ? 1 : character_size(word[at]);
    const std::string_view symbol = word.substr(at, size);
    const std::int32_t id = size == 1 ? byte_ids_[static_cast<unsigned char>(word[at])] : vocabulary_->find(symbol);
    at += size;
    if (id != no_token) {
      put_waiting();
      symbols.push_back(id);
      continue;
    }
    const auto byte_token = [&](char c) { return rules_.byte_tokens[static_cast<unsigned char>(c)]; };
    if (has_byte_tokens_ &&
        std::none_of(symbol.begin(), symbol.end(), [&](char c) { return byte_token(c) == no_token; })) {
      for (char c : symbol) symbols.push_back(byte_token(c));
      continue;
    }
    if (rules_.unknown == no_token) continue;
    if (!rules_.fuse_unknown) put_waiting();
    waiting = true;
  }
  put_waiting();
}

void Bpe::merge_few(Scratch& scratch) const {
  std::vector<std::int32_t>& symbols = scratch.symbols_;
  if (symbols.size() < 2) return;
  std::array<std::uint32_t, few> ranks;
  std::array<std::int32_t, few> results;
  std::size_t pairs = symbols.size() - 1;
  const auto look_up = [&](std::size_t i) {
    const MergeTable::Found found = merges_.find(symbols[i], symbols[i + 1]);
    ranks[i] = found.rank;
    results[i] = found.result;
  };
  for (std::size_t i = 0; i < pairs; ++i) look_up(i);
  while (pairs > 0) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == MergeTable::never) break;
    symbols[best] = results[best];
    const std::size_t after = pairs - best - 1;  // symbols to the right of the merged two
    std::memmove(&symbols[best + 1], symbols.data() + best + 2, after * sizeof(symbols[0]));
    if (after > 0) {
      std::memmove(&ranks[best], ranks.data() + best + 1, after * sizeof(ranks[0]));
      std::memmove(&results[best], results.data() + best + 1, after * sizeof(results[0]));
    }
    --pairs;
    if (best > 0) look_up(best - 1);
    if (best < pairs) look_up(best);
  }
  symbols.resize(pairs + 1);
}

// The same with a heap, for pieces whose length would be felt squared.
void Bpe::merge_many(Scratch& scratch) const {
  std::vector<std::int32_t>& symbols = scratch.symbols_;
  const auto count = static_cast<std::uint32_t>(symbols.size());
  std::vector<std::uint32_t>&ranks = scratch.ranks_, &next = scratch.next_, &previous = scratch.previous_;
  std::vector<std::int32_t>& results = scratch.results_;
  auto& heap = scratch.heap_;
  ranks.assign(count, MergeTable::never);  // of a symbol and the next one
  results.resize(count);
  next.resize(count);
  previous.resize(count);
  heap.clear();
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto look_up = [&](std::uint32_t at) {
    ranks[at] = MergeTable::never;
    if (next[at] == none) return false;
    const MergeTable::Found found = merges_.find(symbols[at], symbols[next[at]]);
    ranks[at] = found.rank;
    results[at] = found.result;
    if (found.rank == MergeTable::never) return false;
    heap.push_back({found.rank, at});
    return true;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : none;
    previous[i] = i > 0 ? i - 1 : none;
  }
  for (std::uint32_t i = 0; i < count; ++i) look_up(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    if (ranks[best.at] != best.rank) continue;  // one of the two has become part of another since
    const std::uint32_t gone = next[best.at];
    symbols[best.at] = results[best.at];
    ranks[gone] = MergeTable::never;
    next[best.at] = next[gone];
    if (next[gone] != none) previous[next[gone]] = best.at;
    if (look_up(best.at)) std::push_heap(heap.begin(), heap.end(), later);
    if (previous[best.at] != none && look_up(previous[best.at])) std::push_heap(heap.begin(), heap.end(), later);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != none; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace weft
