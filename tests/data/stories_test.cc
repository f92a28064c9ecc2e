#include "weft/data/stories.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "weft/data/entropy.h"

namespace weft {
namespace {

const std::set<std::string> girls = {"Anna", "Mia",  "Lily", "Rosa", "Emma",  "Nina",
                                     "Ella", "Sara", "Zoe",  "Ruth", "Clara", "Jane"};
const std::set<std::string> boys = {"Tom",  "Ben",  "Max",  "Leo",  "Sam",  "Jack",
                                    "Finn", "Hugo", "Otto", "Paul", "Noah", "Bill"};

const std::vector<std::string>& stories() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> result;
    for (std::uint64_t i = 0; i < 500; ++i) result.push_back(write_story(1, i));
    return result;
  }();
  return all;
}

// Separated by white space, so with their punctuation.
std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

std::string bare(const std::string& word) {
  std::string letters;
  for (char c : word) {
    if (std::isalnum(static_cast<unsigned char>(c))) letters += c;
  }
  return letters;
}

bool is_number(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::set<std::string> names_in(const std::string& story) {
  std::set<std::string> names;
  for (const std::string& word : words_of(story)) {
    if (girls.contains(bare(word)) || boys.contains(bare(word))) names.insert(bare(word));
  }
  return names;
}

// The middle paragraph of a story.
std::string episode_of(const std::string& story) {
  const std::size_t begin = story.find('\n') + 1;
  return story.substr(begin, story.find('\n', begin) - begin);
}

TEST(Stories, AreTheSameEverywhere) {
  const std::string text = write_stories(1, 64 * 1024).substr(0, 64 * 1024);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  EXPECT_EQ(hash, 0xe0540fcfc31cf0f0u)
      << "the stories have changed; losses of the demo are no longer comparable with older ones";
  EXPECT_NE(text, write_stories(2, 64 * 1024).substr(0, 64 * 1024));
}

TEST(Stories, LongerTextBeginsWithTheShorter) {
  const std::string small = write_stories(5, 5000), large = write_stories(5, 50000);
  EXPECT_GE(small.size(), 5000u);
  EXPECT_LT(small.size(), 5000u + 600u);
  EXPECT_EQ(large.substr(0, small.size()), small);
  EXPECT_EQ(small.substr(0, write_story(5, 0).size()), write_story(5, 0));
  EXPECT_EQ(write_stories(5, 0), "");
}

TEST(Stories, AreShortAsciiAndSeparatedByBlankLines) {
  std::set<std::string> words;
  for (const std::string& story : stories()) {
    ASSERT_GE(story.size(), 300u);
    ASSERT_LE(story.size(), 600u);
    ASSERT_TRUE(story.ends_with(".\n\n") || story.ends_with("!\n\n") || story.ends_with("\"\n\n")) << story;
    ASSERT_EQ(story.find("\n\n"), story.size() - 2) << story;
    for (unsigned char c : story) ASSERT_TRUE((c >= 32 && c < 127) || c == '\n') << story;
    ASSERT_EQ(story.find_first_of("{}"), std::string::npos) << story;
    ASSERT_EQ(story.find("  "), std::string::npos) << story;
    ASSERT_EQ(std::count(story.begin(), story.end(), '"') % 2, 0) << story;
    for (const std::string& word : words_of(story)) words.insert(bare(word));
  }
  EXPECT_GT(words.size(), 200u);
  EXPECT_LT(words.size(), 400u);
}

TEST(Stories, DoNotRepeat) {
  const std::set<std::string> distinct(stories().begin(), stories().end());
  EXPECT_EQ(distinct.size(), stories().size());
}

TEST(Stories, SumsComeOutRight) {
  int more = 0, left = 0, together = 0, asked = 0;
  for (const std::string& story : stories()) {
    const std::string episode = episode_of(story);
    std::vector<int> numbers;
    std::vector<std::string> nouns;
    const auto words = words_of(episode);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!is_number(bare(words[i]))) continue;
      numbers.push_back(std::stoi(bare(words[i])));
      if (is_number(words[i]) && words[i + 1] != "more." && words[i + 1] != "to") nouns.push_back(bare(words[i + 1]));
    }
    const auto has = [&](const char* word) { return episode.find(word) != std::string::npos; };
    if (numbers.empty()) continue;
    ASSERT_EQ(numbers.size(), 3u) << story;
    EXPECT_EQ(has("left.") ? numbers[0] - numbers[1] : numbers[0] + numbers[1], numbers[2]) << story;
    if (numbers[2] != 1) {
      EXPECT_EQ(std::set(nouns.begin(), nouns.end()).size(), 1u) << story;
    }
    more += has(" more.") && has("Now ");
    left += has("left.");
    together += has("Together they had");
    asked += has("How many");
  }
  EXPECT_GT(more, 40);
  EXPECT_GT(left, 40);
  EXPECT_GT(together, 20);
  EXPECT_GT(asked, 20);
}

TEST(Stories, NumbersAgreeWithNouns) {
  const std::set<std::string> one = {"apple", "pear",  "plum",   "nut",   "egg",
                                     "shell", "stone", "flower", "berry", "leaf"};
  const std::set<std::string> many = {"apples", "pears",  "plums",   "nuts",    "eggs",
                                      "shells", "stones", "flowers", "berries", "leaves"};
  int ones = 0, manies = 0;
  for (const std::string& story : stories()) {
    const auto words = words_of(story);
    for (std::size_t i = 2; i + 1 < words.size(); ++i) {
      if (!is_number(words[i]) || words[i + 1] == "more." || words[i + 1] == "to") continue;
      const bool single = words[i] == "1";
      EXPECT_TRUE((single ? one : many).contains(bare(words[i + 1]))) << words[i] << " " << words[i + 1] << "\n"
                                                                      << story;
      ++(single ? ones : manies);
      if (words[i - 2] == "there" || words[i - 2] == "There") {
        EXPECT_EQ(words[i - 1], single ? "was" : "were") << story;
      }
    }
  }
  EXPECT_GT(ones, 5);
  EXPECT_GT(manies, 400);
}

TEST(Stories, ArticlesAgreeWithTheNextLetter) {
  int an = 0;
  for (const std::string& story : stories()) {
    const auto words = words_of(story);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      const std::string article = bare(words[i]);
      if (article != "a" && article != "A" && article != "an" && article != "An") continue;
      const bool vowel = std::string("aeiou").find(words[i + 1][0]) != std::string::npos;
      EXPECT_EQ(article.size() == 2, vowel) << article << " " << words[i + 1] << "\n" << story;
      an += vowel;
    }
  }
  EXPECT_GT(an, 50);
}

TEST(Stories, TwoNamesRecurInEach) {
  for (const std::string& story : stories()) {
    const auto names = names_in(story);
    ASSERT_EQ(names.size(), 2u) << story;
    for (const std::string& name : names) EXPECT_NE(story.find(name), story.rfind(name)) << story;
  }
}

TEST(Stories, PronounsAgreeWithNames) {
  const std::set<std::string> male = {"he", "He", "his", "His", "him", "boy"};
  const std::set<std::string> female = {"she", "She", "her", "Her", "girl"};
  int only_girls = 0, only_boys = 0, introduced = 0;
  for (const std::string& story : stories()) {
    int count = 0;
    for (const std::string& name : names_in(story)) count += girls.contains(name);
    const auto words = words_of(story);
    for (std::size_t i = 0; i < words.size(); ++i) {
      EXPECT_FALSE(count == 2 && male.contains(bare(words[i]))) << words[i] << "\n" << story;
      EXPECT_FALSE(count == 0 && female.contains(bare(words[i]))) << words[i] << "\n" << story;
      // "Anna was a kind girl. She lived"
      if (i >= 4 && i + 1 < words.size() && (words[i] == "girl." || words[i] == "boy.") && words[i - 3] == "was") {
        const bool once = words[i - 4] == "there";  // "Once there was a kind girl. Her name was Anna."
        const bool girl = girls.contains(bare(once ? words[i + 4] : words[i - 4]));
        EXPECT_EQ(words[i], girl ? "girl." : "boy.") << story;
        EXPECT_EQ(words[i + 1], once ? (girl ? "Her" : "His") : (girl ? "She" : "He")) << story;
        ++introduced;
      }
    }
    only_girls += count == 2;
    only_boys += count == 0;
  }
  EXPECT_GT(only_girls, 80);
  EXPECT_GT(only_boys, 80);
  EXPECT_GT(introduced, 50);
}

TEST(Stories, WhatIsGivenStaysWithTheReceiver) {
  int gifts = 0;
  for (const std::string& story : stories()) {
    const std::string plot = story.substr(0, story.find('\n'));  // the episode and the end of the plot follow
    const auto words = words_of(plot);
    const auto gave = std::find(words.begin(), words.end(), "gave");
    // "gave the red kite to Anna."
    if (words.end() - gave < 6 || gave[1] != "the" || gave[4] != "to") continue;
    const std::string thing = "the " + gave[2] + " " + gave[3], receiver = bare(gave[5]);
    const std::string end = story.substr(plot.size() + episode_of(story).size() + 2);
    const std::string sentence = end.substr(0, end.find('.'));
    EXPECT_NE(sentence.find(thing), std::string::npos) << story;
    EXPECT_LT(sentence.find(receiver), sentence.find(thing)) << story;
    ++gifts;
  }
  EXPECT_GT(gifts, 30);
}

TEST(Stories, WhatIsLostIsWhereItWasSeen) {
  int found = 0;
  for (const std::string& story : stories()) {
    for (const std::string said : {"\"I think it is ", "\"I saw it "}) {
      const std::size_t at = story.find(said);
      if (at == std::string::npos) continue;
      const std::size_t spot = at + said.size();
      const std::string where = story.substr(spot, story.find(',', spot) - spot);
      EXPECT_NE(story.find("looked " + where + ".", spot), std::string::npos) << story;
      ++found;
    }
  }
  EXPECT_GT(found, 30);
}

TEST(LetterEntropy, KnownValues) {
  EXPECT_EQ(letter_entropy(""), 0);
  EXPECT_EQ(letter_entropy("aaaa"), 0);
  EXPECT_DOUBLE_EQ(letter_entropy("abab"), std::log(2.0));
  EXPECT_DOUBLE_EQ(letter_entropy("aabc"), 1.5 * std::log(2.0));
  const double stories_entropy = letter_entropy(write_stories(1, 100000));
  EXPECT_GT(stories_entropy, 3.0);
  EXPECT_LT(stories_entropy, 3.3);
}

}  // namespace
}  // namespace weft
