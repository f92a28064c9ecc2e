#include "weft/data/tokenizers/unigram.h"

#include <algorithm>

#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

constexpr float unknown_penalty = 10;

ByteTrie trie_of(const std::vector<Unigram::Piece>& pieces) {
  std::vector<ByteTrie::Entry> entries;
  for (const Unigram::Piece& piece : pieces) entries.push_back({piece.text, piece.id});
  return ByteTrie(std::move(entries));
}

}  // namespace

Unigram::Unigram(const std::vector<Piece>& pieces, std::int64_t size, std::int32_t unknown, float lowest, float highest)
    : trie_(trie_of(pieces)),
      scores_(static_cast<std::size_t>(size)),
      user_defined_(static_cast<std::size_t>(size)),
      unknown_(unknown),
      unknown_score_(lowest - unknown_penalty),
      highest_(highest) {
  for (const Piece& piece : pieces) {
    scores_[static_cast<std::size_t>(piece.id)] = piece.score;
    user_defined_[static_cast<std::size_t>(piece.id)] = piece.user_defined;
  }
}

// Sums are floats, as in SentencePiece 0.2.3: how they are rounded decides between ways that are nearly as good.
void Unigram::find_path(std::string_view text, Scratch& scratch) const {
  std::vector<Scratch::Place>& places = scratch.places;
  places.assign(text.size() + 1, {});
  const auto reach = [&](std::size_t end, float score, std::int32_t id, std::size_t begin) {
    Scratch::Place& place = places[end];
    if (place.begin != -1 && score <= place.score) return;
    place = {score, id, static_cast<std::int32_t>(begin)};
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t size = std::min(character_size(text[begin]), text.size() - begin);
    const float so_far = places[begin].score;
    bool single = false;  // the first character is a piece
    std::uint32_t node = ByteTrie::root;
    for (std::size_t end = begin; end < text.size();) {
      node = trie_.child(node, text[end++]);
      if (node == ByteTrie::nowhere) break;
      const std::int32_t id = trie_.value(node);
      if (id < 0) continue;
      const auto i = static_cast<std::size_t>(id);
      const float score = user_defined_[i] ? static_cast<float>(end - begin) * highest_ - 0.1f : scores_[i];
      reach(end, score + so_far, id, begin);
      single = single || end - begin == size;
    }
    if (!single) reach(begin + size, unknown_score_ + so_far, unknown_, begin);
    begin += size;
  }
  scratch.path.clear();
  for (auto end = static_cast<std::int32_t>(text.size()); end > 0; end = places[static_cast<std::size_t>(end)].begin)
    scratch.path.push_back(end);
}

}  // namespace weft
