// Encoding on one thread with a vocabulary of 128k: byte-level tokenizer.json with Llama 3's pattern, in MB/s of text. With
// --peer PYTHON, a Python with Hugging Face's `tokenizers`, the same file and text are encoded by that library in the same
// run, turn by turn (bench/peers/tokenize.py), and the ids are compared. One JSON line per case:
//  - words: text in which most words occur again and again, as in any language;
//  - new_words: text in which no word occurs twice, so that remembering words helps nobody.
// Times are those of the processor, of Weft's thread and of the peer's process, so other work on the machine counts little.
// The tokenizer's merges are learned from words that are made from a seed, so all of its tokens can be reached.
//
//   ./run bench tokenize --peer ~/venv/bin/python
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/bpe_trainer.h"
#include "bench/made_text.h"
#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/data/tokenizers/byte_letters.h"
#include "weft/data/tokenizers/hugging_face.h"
#include "weft/train/flags.h"

namespace weft {
namespace {

constexpr std::uint64_t seed = 1;
constexpr std::size_t lexicon = 400000;
constexpr const char* llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Seconds of this thread on a processor: others on a shared machine do not count.
double now() {
  timespec time;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

LearnedMerges learn(const MadeText& made, std::size_t tokens, std::string_view space) {
  std::vector<std::pair<std::string, std::int64_t>> words;
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < made.words().size(); ++i) {
    if (!seen.insert(made.words()[i]).second) continue;
    const auto count = static_cast<std::int64_t>(1e6 * MadeText::frequency(i)) + 1;
    words.emplace_back(std::string(space) + made.words()[i], count);
  }
  for (const char* text : {",", ".", "!", "?", ":", ".\n", "!\n", "\n\n", "    ", "'s", "?\n\n", ":\n\n"})
    words.emplace_back(text, 100000);
  for (int i = 0; i < 1000; ++i) words.emplace_back(std::to_string(i), 1000);
  return learn_merges(words, tokens);
}

Json added(std::size_t id, const char* text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

std::string byte_level_tokenizer(const LearnedMerges& learned) {
  const ByteLetters letters;
  Json vocabulary = Json::object(), merges = Json::array();
  std::vector<std::string> texts;
  for (const std::string& token : learned.tokens) texts.push_back(letters.to_letters(token));
  std::map<std::string, std::size_t> ids;
  for (std::size_t i = 0; i < texts.size(); ++i) ids.emplace(texts[i], i);
  for (const auto& [text, id] : ids) vocabulary.get_ref<Json::object_t&>().emplace_back(text, id);
  for (const auto& [left, right] : learned.merges)
    merges.push_back({texts[static_cast<std::size_t>(left)], texts[static_cast<std::size_t>(right)]});
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", llama3_pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json steps = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array({added(learned.tokens.size(), "<|endoftext|>")})},
              {"normalizer", nullptr},
              {"pre_tokenizer", steps},
              {"post_processor", nullptr},
              {"decoder", byte_level(true)},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", true},
                {"vocab", vocabulary},
                {"merges", merges}}}}
      .dump();
}

struct Case {
  std::string name, tokenizer, text;  // texts: files
};

// Best of the rounds, in MB/s.
class Measured {
 public:
  Measured(const Case& c, std::string peer) : case_(c), peer_(std::move(peer)), text_(read_file(c.text)) {
    const double begin = now();
    tokenizer_ = read_hugging_face_tokenizer(c.tokenizer);
    load_seconds_ = now() - begin;
  }
  void round() {
    const std::unique_ptr<Encoder> encoder = tokenizer_->encoder();  // has met no word
    std::vector<std::int32_t> ids;
    const double begin = now();
    encoder->encode(text_, ids);
    best_ = std::max(best_, static_cast<double>(text_.size()) / 1e6 / (now() - begin));
    ids_ = ids.size();
    checksum_ = checksum_text(checksum_of(std::string_view(reinterpret_cast<const char*>(ids.data()), 4 * ids.size())));
    if (peer_.empty()) return;
    const std::string command =
        fmt::format("TOKENIZERS_PARALLELISM=false '{}' bench/peers/tokenize.py '{}' '{}' '{}.ids'", peer_,
                    case_.tokenizer, case_.text, case_.text);
    std::FILE* pipe = ::popen(command.c_str(), "r");
    char line[400] = {};
    const bool read = pipe && std::fgets(line, sizeof(line), pipe);
    if (!pipe || ::pclose(pipe) != 0 || !read) throw RunError("the peer failed: {}", command);
    const Json said = parse_json(line, "the peer");
    peer_best_ = std::max(peer_best_, said["mb_per_s"].get<double>());
    version_ = said["version"];
    const std::string theirs = read_file(case_.text + ".ids");
    same_ = same_ && checksum_text(checksum_of(theirs)) == checksum_;
  }
  void print() const {
    Json line = {{"case", case_.name},
                 {"mb", static_cast<double>(text_.size() / 10000) / 100},
                 {"vocabulary", tokenizer_->vocabulary_size()},
                 {"ids", ids_},
                 {"load_s", std::round(1000 * load_seconds_) / 1000},
                 {"mb_per_s", std::round(100 * best_) / 100}};
    if (!peer_.empty()) {
      line["peer"] = "tokenizers " + version_;
      line["peer_mb_per_s"] = std::round(100 * peer_best_) / 100;
      line["ratio"] = std::round(100 * best_ / peer_best_) / 100;
      line["same_ids"] = same_;
    }
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

 private:
  Case case_;
  std::string peer_, text_, checksum_, version_;
  std::unique_ptr<Tokenizer> tokenizer_;
  double load_seconds_ = 0, best_ = 0, peer_best_ = 0;
  std::size_t ids_ = 0;
  bool same_ = true;
};

// The words of a text that have not occurred before, each once.
std::string new_words(const std::string& text) {
  std::unordered_set<std::string_view> seen;
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    if (end > at && seen.insert(word).second) (result += ' ') += word;
    at = end + 1;
  }
  return result;
}

std::vector<Case> make(const std::filesystem::path& folder, std::size_t megabytes) {
  std::filesystem::create_directories(folder);
  const MadeText made(seed, lexicon);
  const LearnedMerges learned = learn(made, 128000, " ");
  const auto file = [&](const char* name, const std::string& text) {
    write_file_atomically(folder / name, text);
    return (folder / name).string();
  };
  const std::string tokenizer = file("tokenizer.json", byte_level_tokenizer(learned));
  const std::string text = made.text(seed + 1, megabytes * 1000000);
  return {{"words", tokenizer, file("words.txt", text)},
          {"new_words", tokenizer, file("new_words.txt", new_words(made.text(seed + 2, 8 * megabytes * 1000000)))}};
}

int run(int argc, char** argv) {
  std::string peer, folder;
  std::int64_t megabytes = 10, rounds = 5;
  bool only_make = false;
  FlagTable flags("bench_tokenize");
  flags.add("--peer", peer, "PYTHON", "Also encodes with Hugging Face's library, which this Python has.");
  flags.add("--folder", folder, "DIR", "Where tokenizer and texts go.");
  flags.add("--mb", megabytes, "N", "Size of the text.").at_least(1);
  flags.add("--rounds", rounds, "N", "The best of so many counts.").at_least(1);
  flags.add("--only-make", only_make, "Write tokenizer and texts, and measure nothing.");
  const std::vector<std::string> words(argv + 1, argv + argc);
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  if (folder.empty()) folder = (std::filesystem::temp_directory_path() / "weft-bench-tokenize").string();
  const std::vector<Case> cases = make(folder, static_cast<std::size_t>(megabytes));
  if (only_make) return 0;
  for (const Case& one : cases) {
    Measured measured(one, peer);
    for (std::int64_t i = 0; i < rounds; ++i) measured.round();
    measured.print();
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
