#include "weft/data/stories.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/data/story_plots.h"
#include "weft/data/story_words.h"

namespace weft {

namespace {

using namespace story;

constexpr std::size_t shortest = 300, longest = 600;  // bytes per story

// The random draws of one story, in sequence.
class Dice {
 public:
  explicit Dice(std::uint64_t key) : key_(key) {}
  std::size_t below(std::size_t bound) { return random_below(key_, next_++, bound); }
  template <class Range>
  const auto& pick(const Range& range) {
    return range[below(std::size(range))];
  }

 private:
  std::uint64_t key_, next_ = 0;
};

std::string with_article(std::string_view words) {
  const bool vowel = std::string_view("aeiou").find(words.front()) != std::string_view::npos;
  return fmt::format("{} {}", vowel ? "an" : "a", words);
}

std::string counted(std::int64_t number, const Countable& thing) {
  return fmt::format("{} {}", number, number == 1 ? thing.one : thing.many);
}

std::string capital(std::string text) {
  if (text.front() >= 'a' && text.front() <= 'z') text.front() = static_cast<char>(text.front() - 'a' + 'A');
  return text;
}

// What the story is about: the replacements of the {names} in the plots.
class Cast {
 public:
  explicit Cast(Dice& dice) {
    const std::string_view hero = add_person(dice, "", "hero", "");
    const std::string_view companion = add_person(dice, "f", "friend", hero);
    const bool hero_wins = dice.below(2) == 0;
    set("winner", hero_wins ? hero : companion);
    set("loser", hero_wins ? companion : hero);
    set("parent", dice.pick(family));
    set("nature", dice.pick(natures));
    set("a_nature", with_article(get("nature")));
    set("feeling", dice.pick(feelings));
    add_places(dice);
    add_things(dice);
    add_numbers(dice);
    const std::size_t animal = dice.below(animals.size());
    add_animal("", animals[animal]);
    add_animal("2", animals[(animal + 1 + dice.below(animals.size() - 1)) % animals.size()]);
    set("pet", dice.pick(pet_names));
    set("meal", dice.pick(meals));
  }

  std::string fill(std::string_view line) const {
    std::string text;
    while (true) {
      const std::size_t open = line.find('{');
      text += line.substr(0, open);
      if (open == std::string_view::npos) return text;
      const std::size_t close = line.find('}', open);
      std::string name(line.substr(open + 1, close - open - 1));
      const bool upper = name.front() >= 'A' && name.front() <= 'Z';
      if (upper) name.front() = static_cast<char>(name.front() - 'A' + 'a');
      text += upper ? capital(get(name)) : get(name);
      line.remove_prefix(close + 1);
    }
  }

 private:
  std::string_view add_person(Dice& dice, const std::string& prefix, std::string_view role, std::string_view other) {
    const bool girl = dice.below(2) == 0;
    std::string_view name;
    do {
      name = dice.pick(girl ? girls : boys);
    } while (name == other);
    set(role, name);
    set(prefix + "he", girl ? "she" : "he");
    set(prefix + "his", girl ? "her" : "his");
    set(prefix + "him", girl ? "her" : "him");
    set(prefix + "child", girl ? "girl" : "boy");
    return name;
  }

  void add_animal(const std::string& suffix, const Animal& animal) {
    set("animal" + suffix, animal.name);
    set("animals" + suffix, animal.plural);
    set("a_animal" + suffix, with_article(animal.name));
    set("sound" + suffix, animal.sound);
    set("food" + suffix, animal.food);
  }

  void add_places(Dice& dice) {
    const std::size_t here = dice.below(places.size());
    set("place", places[here].name);
    set("where", places[here].where);
    set("place2", places[(here + 1 + dice.below(places.size() - 1)) % places.size()].name);
    set("spot", dice.pick(spots));
    set("weather", dice.pick(weathers));
  }

  void add_things(Dice& dice) {
    const std::size_t thing = dice.below(things.size());
    const std::size_t other = (thing + 1 + dice.below(things.size() - 1)) % things.size();
    set("noun", things[thing]);
    set("noun2", things[other]);
    set("thing", fmt::format("{} {}", dice.pick(adjectives), things[thing]));
    set("thing2", fmt::format("{} {}", dice.pick(adjectives), things[other]));
    set("a_thing", with_article(get("thing")));
    set("a_thing2", with_article(get("thing2")));
    set("color", dice.pick(colors));
  }

  void add_numbers(Dice& dice) {
    const auto number = [&](std::size_t low, std::size_t high) {
      return static_cast<std::int64_t>(low + dice.below(high - low + 1));
    };
    const Countable& counted_thing = dice.pick(countables);
    const std::int64_t a = number(3, 9), b = number(2, 9), taken = number(1, static_cast<std::size_t>(a) - 1);
    set("n_a", counted(a, counted_thing));
    set("n_b", counted(b, counted_thing));
    set("b", std::to_string(b));
    set("items", counted_thing.many);
    set("sum", std::to_string(a + b));
    set("n_sum", counted(a + b, counted_thing));
    set("taken", std::to_string(taken));
    set("n_left", counted(a - taken, counted_thing));
    set("were_left", a - taken == 1 ? "was" : "were");
    set("n_k", counted(number(2, 9), dice.pick(countables)));
  }

  void set(std::string_view name, std::string_view value) { values_.emplace_back(name, value); }
  const std::string& get(std::string_view name) const {
    const auto found = std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == name; });
    WEFT_CHECK(found != values_.end(), "a plot names {{{}}}", name);
    return found->second;
  }

  std::vector<std::pair<std::string, std::string>> values_;
};

void tell(std::string& story, const Lines& lines, const Cast& cast, Dice& dice) {
  for (const Line& line : lines) {
    const std::string_view chosen = dice.pick(line);
    if (chosen.empty()) continue;
    if (!story.empty() && story.back() != '\n') story += ' ';
    story += cast.fill(chosen);
  }
}

// The parts of all stories, built once for a whole text.
struct Library {
  Lines first = opening(), last = closing();
  std::vector<Plot> plots = story::plots();
  std::vector<Lines> episodes = story::episodes();

  std::string write(std::uint64_t seed, std::uint64_t number) const {
    Dice dice(random_key(seed, fmt::format("story {}", number)));
    std::string text;
    while (true) {
      const Cast cast(dice);
      const Plot& plot = dice.pick(plots);
      text.clear();
      tell(text, first, cast, dice);
      tell(text, plot.beginning, cast, dice);
      text += '\n';
      tell(text, dice.pick(episodes), cast, dice);
      text += '\n';
      tell(text, plot.end, cast, dice);
      tell(text, last, cast, dice);
      text += "\n\n";
      if (text.size() >= shortest && text.size() <= longest) return text;
    }
  }
};

}  // namespace

std::string write_story(std::uint64_t seed, std::uint64_t number) { return Library().write(seed, number); }

std::string write_stories(std::uint64_t seed, std::size_t bytes) {
  const Library library;
  std::string text;
  text.reserve(bytes + longest);
  for (std::uint64_t number = 0; text.size() < bytes; ++number) text += library.write(seed, number);
  return text;
}

}  // namespace weft
