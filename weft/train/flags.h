// The flags of a command, as one table that drives the command line, TOML files, --help and docs/options.md.
//
// No library speaks Megatron's dialect: long names that are never abbreviated, lists separated by spaces, several
// spellings of one option ("--swiglu", "--untie-..."), foreign flags that are accepted with a note or refused with a
// reason, and for every value the place it came from.
//
//   std::int64_t hidden = 128;
//   FlagTable flags("weft train");
//   flags.section("Model");
//   flags.add("--hidden-size", hidden, "N", "Width of the residual stream.").at_least(1);
//   flags.apply(flags.scan(args));
//
// Targets are plain variables that outlive the table; the value they hold when they are added is the default. Every
// mistake is a UserError that names the flag. A word that begins with "--" and a lower-case letter is a flag, so a
// pattern such as "--E" can be a value.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

// Where a value came from; later sources override earlier ones.
struct FlagOrigin {
  enum class Source : std::uint8_t { standard, derived, checkpoint, file, command_line } source = Source::standard;
  std::string where;  // "small.toml:3"; the reason of a derived value; the checkpoint, and its name for the value
  // For the caret under a line of a file: the line, and the offsets in bytes of key and value.
  std::string line;
  std::size_t key_at = 0, value_at = 0;

  std::string text() const;  // "default", "small.toml:3", "command line", "derived: ..."
};

// A value as written, before it is read as the flag's kind. `words` is the form of the command line: always text.
struct FlagValue {
  enum class Form : std::uint8_t { none, words, boolean, integer, real, text, list } form = Form::none;
  std::vector<std::string> words;  // one, or the items of a list; "true" or "false"
};

struct FlagAssignment {
  std::string spelling;  // "--hidden-size"
  FlagValue value;
  FlagOrigin origin;
};

enum class FlagKind : std::uint8_t { toggle, integer, real, text, choice, list, foreign };

// One option. The functions that return Flag& refine it.
struct Flag {
  struct Spelling {
    std::string text;
    std::optional<std::string> implied;  // this spelling takes no value: it stands for this one
  };

  std::string name, value_name, help, section;
  FlagKind kind = FlagKind::text;
  std::vector<Spelling> spellings;  // the first is the name
  std::vector<std::string> choices;
  std::map<std::string, std::string> lacking;  // values of Megatron's that Weft lacks, and why
  std::string default_text;                    // shown by help: the target's first value, or the text of `standard`
  std::optional<std::string> lonely;           // the value if none is written; absent: a value is required
  bool many = false;                           // takes all words up to the next flag
  bool repeats = false;                        // each occurrence adds one item
  bool command_line_only = false;
  bool empty_means_something = false;  // else an empty value is refused: it comes from an unset variable of a script
  bool silent = false;                 // of a foreign flag: leaves no note
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  // the bound itself is excluded
  // Of whole numbers: a bound that help does not show. Products of a few sizes must not overflow.
  double limit = 1 << 30;

  std::function<void(const std::vector<std::string>&)> store;
  std::function<std::string()> show;
  FlagOrigin origin;
  std::string spelled;  // the spelling that set it last
  int layer = 0;        // the call of apply that set it last

  Flag& alias(std::string spelling);
  Flag& means(std::string spelling, std::string value);  // "--fp64" for "--dtype f64"
  Flag& negation(std::string spelling) { return means(std::move(spelling), "false"); }
  Flag& no_form();  // "--no-NAME"
  Flag& at_least(double bound);
  Flag& above(double bound);
  Flag& at_most(double bound);
  Flag& below(double bound);
  Flag& standard(std::string text);  // describes a default that is computed: "hidden-size / num-attention-heads"
  Flag& or_alone(std::string value);
  Flag& lacks(std::string value, std::string reason);
  Flag& limited_to(double bound);
  Flag& takes_many();
  Flag& each();  // a list that takes one word per occurrence
  Flag& only_on_command_line();
  Flag& may_be_empty();
  Flag& without_note();

  // Throws "--flag: message".
  [[noreturn]] void refuse(const std::string& message) const;
  std::string key() const;               // the name without its dashes
  void check_range(double value) const;  // throws
  std::string rule() const;              // "at least 1"
};

class FlagTable {
 public:
  explicit FlagTable(std::string program, std::string summary = "");
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  // Flags that are added from here on belong to it.
  void section(std::string title) { section_ = std::move(title); }

  Flag& add(std::string name, bool& target, std::string help);
  Flag& add(std::string name, std::optional<bool>& target, std::string help);  // absent: derived later
  Flag& add(std::string name, std::int64_t& target, std::string value_name, std::string help);
  Flag& add(std::string name, double& target, std::string value_name, std::string help);
  Flag& add(std::string name, std::optional<double>& target, std::string value_name, std::string help);
  Flag& add(std::string name, std::string& target, std::string value_name, std::string help);
  Flag& add(std::string name, std::vector<std::string>& target, std::string value_name, std::string help);
  template <class E>
  Flag& choice(std::string name, E& target, std::vector<std::pair<std::string, E>> values, std::string help);
  // A value with a grammar of its own. `store` throws UserError; `show` returns the value as it would be written.
  Flag& custom(std::string name, std::string value_name, std::function<void(const std::string&)> store,
               std::function<std::string()> show, std::string help);

  // Flags of other programs. `value_name` "" makes a switch. `judge` returns why a value is refused, or "" if it asks for
  // what is done anyway; an accepted flag leaves the note.
  using Judge = std::function<std::string(const std::string& value)>;
  Flag& accept(std::string name, std::string value_name, std::string note, Judge judge = {});
  Flag& refuse(std::string name, std::string value_name, std::string reason);

  // A word that is not a flag: "weft pattern PATTERN".
  void positional(std::string value_name, std::string& target, std::string help, bool required = true);
  // Advice for a word that is neither a flag, nor a value, nor one of the positionals.
  void further_words_mean(std::string advice) { advice_ = std::move(advice); }

  // Turns words into assignments. Throws for unknown flags and missing values; changes nothing but help_wanted().
  std::vector<FlagAssignment> scan(std::span<const std::string> words);
  // Each call overrides the earlier ones: files in their order, then the command line. Two different values of one
  // flag in one call are an error.
  void apply(std::span<const FlagAssignment> assignments);

  bool help_wanted() const { return help_wanted_; }
  const std::vector<std::string>& notes() const { return notes_; }
  void note(std::string text) { notes_.push_back(std::move(text)); }
  const Flag& flag(std::string_view name) const;  // by any spelling, with or without the dashes
  bool is_set(std::string_view name) const;       // by a file, the command line or --use-checkpoint-args
  const std::deque<Flag>& flags() const { return flags_; }
  void mark_derived(std::string_view name, std::string reason);

  std::string help() const;
  std::string explain(std::string_view name) const;  // one flag: its value, origin and meaning
  std::string dump() const;                          // every value, "  name ........ value", sorted by name
  std::string markdown() const;                      // one table per section

 private:
  struct Positional {
    std::string value_name, help;
    std::string* target;
    bool required;
  };
  struct Found {
    Flag* flag;
    const Flag::Spelling* spelling;
  };

  Flag& insert(std::string name, FlagKind kind, std::string value_name, std::string help);
  void finish(Flag& flag);
  Found find(std::string_view spelling);
  std::string suggestion(std::string_view spelling) const;  // "; did you mean --hidden-size?"
  std::vector<std::string> words_of(const Found& found, const FlagValue& value) const;
  void apply(const FlagAssignment& assignment);
  std::string usage() const;

  std::string program_, summary_, section_ = "Options", advice_ = "it belongs to no flag";
  std::deque<Flag> flags_;  // references stay valid
  std::vector<Positional> positionals_;
  std::vector<std::string> notes_;
  bool help_wanted_ = false;
  int layer_ = 0;
};

bool looks_like_flag(std::string_view word);

template <class E>
Flag& FlagTable::choice(std::string name, E& target, std::vector<std::pair<std::string, E>> values, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::choice, "", std::move(help));
  for (const auto& [text, value] : values) flag.choices.push_back(text);
  flag.store = [&target, values](const std::vector<std::string>& words) {
    for (const auto& [text, value] : values)
      if (text == words.front()) target = value;
  };
  flag.show = [&target, values] {
    for (const auto& [text, value] : values)
      if (value == target) return text;
    return std::string();
  };
  finish(flag);
  return flag;
}

}  // namespace weft
