#include "weft/data/stories.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <regex>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/data/entropy.h"

namespace weft {
namespace {

using Matches = std::vector<std::smatch>;

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

Matches find_all(const std::string& text, const std::regex& pattern) {
  return {std::sregex_iterator(text.begin(), text.end(), pattern), {}};
}

std::set<std::string> words_in(const std::string& story) {
  std::set<std::string> words;
  std::string word;
  for (char c : story) {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += c;
    } else if (!word.empty()) {
      words.insert(std::exchange(word, ""));
    }
  }
  return words;
}

std::set<std::string> names_in(const std::string& story) {
  std::set<std::string> names;
  for (const std::string& word : words_in(story)) {
    if (girls.contains(word) || boys.contains(word)) names.insert(word);
  }
  return names;
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
    words.merge(words_in(story));
  }
  EXPECT_GT(words.size(), 200u);
  EXPECT_LT(words.size(), 400u);
}

TEST(Stories, DoNotRepeat) {
  const std::set<std::string> distinct(stories().begin(), stories().end());
  EXPECT_EQ(distinct.size(), stories().size());
}

TEST(Stories, SumsComeOutRight) {
  const std::regex addition(R"((\d+) (\w+)( on the ground)?\. [^.0-9]*(\d+) more\. Now [^.0-9]*(\d+) (\w+)\.)");
  const std::regex subtraction(
      R"((\d+) (\w+)( on the table)?\. [^.0-9]*(\d+)[^.0-9]*\. Now [^.0-9]*(\d+) (\w+) left\.)");
  const std::regex total(R"((\d+) (\w+) and \w+ had (\d+) \w+\. Together they had (\d+) (\w+)\.)");
  const std::regex answer(
      R"((\d+) (\w+)\. \w+ \w+ (\d+) more\. "How many (\w+) do you have\?" \w+ \w+\. "[^"0-9]*(\d+)[^"0-9]*")");
  int additions = 0, subtractions = 0, totals = 0, answers = 0;
  for (const std::string& story : stories()) {
    for (const auto& m : find_all(story, addition)) {
      EXPECT_EQ(std::stoi(m[1]) + std::stoi(m[4]), std::stoi(m[5])) << story;
      EXPECT_EQ(m[2], m[6]) << story;
      ++additions;
    }
    for (const auto& m : find_all(story, subtraction)) {
      EXPECT_EQ(std::stoi(m[1]) - std::stoi(m[4]), std::stoi(m[5])) << story;
      ++subtractions;
    }
    for (const auto& m : find_all(story, total)) {
      EXPECT_EQ(std::stoi(m[1]) + std::stoi(m[3]), std::stoi(m[4])) << story;
      EXPECT_EQ(m[2], m[5]) << story;
      ++totals;
    }
    for (const auto& m : find_all(story, answer)) {
      EXPECT_EQ(std::stoi(m[1]) + std::stoi(m[3]), std::stoi(m[5])) << story;
      EXPECT_EQ(m[2], m[4]) << story;
      ++answers;
    }
  }
  EXPECT_GT(additions, 40);
  EXPECT_GT(subtractions, 40);
  EXPECT_GT(totals, 20);
  EXPECT_GT(answers, 20);
}

TEST(Stories, NumbersAgreeWithNouns) {
  const std::set<std::string> one = {"apple", "pear",  "plum",   "nut",   "egg",
                                     "shell", "stone", "flower", "berry", "leaf"};
  const std::set<std::string> many = {"apples", "pears",  "plums",   "nuts",    "eggs",
                                      "shells", "stones", "flowers", "berries", "leaves"};
  const std::regex count(R"((\d+) (\w+))"), verb(R"([Tt]here (was|were) (\d+) )");
  int ones = 0, manies = 0;
  for (const std::string& story : stories()) {
    for (const auto& m : find_all(story, count)) {
      if (m[2] == "more" || m[2] == "to") continue;
      EXPECT_TRUE((m[1] == "1" ? one : many).contains(m[2])) << m.str() << "\n" << story;
      ++(m[1] == "1" ? ones : manies);
    }
    for (const auto& m : find_all(story, verb)) EXPECT_EQ(m[1].str() == "was", m[2].str() == "1") << story;
  }
  EXPECT_GT(ones, 5);
  EXPECT_GT(manies, 400);
}

TEST(Stories, ArticlesAgreeWithTheNextLetter) {
  const std::regex article(R"(\b([Aa]n?) ([a-z]))");
  int an = 0;
  for (const std::string& story : stories()) {
    for (const auto& m : find_all(story, article)) {
      const bool vowel = std::string("aeiou").find(m[2].str()) != std::string::npos;
      EXPECT_EQ(m[1].str().size() == 2, vowel) << m.str() << "\n" << story;
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
  const std::vector<std::string> male = {"he", "He", "his", "His", "him", "boy"};
  const std::vector<std::string> female = {"she", "She", "her", "Her", "girl"};
  const std::regex introduction(R"((\w+) was an? \w+ (girl|boy)\. (She|He) )");
  int only_girls = 0, only_boys = 0, introduced = 0;
  for (const std::string& story : stories()) {
    int count = 0;
    for (const std::string& name : names_in(story)) count += girls.contains(name);
    const auto words = words_in(story);
    if (count == 2) {
      for (const std::string& word : male) EXPECT_FALSE(words.contains(word)) << word << "\n" << story;
      ++only_girls;
    } else if (count == 0) {
      for (const std::string& word : female) EXPECT_FALSE(words.contains(word)) << word << "\n" << story;
      ++only_boys;
    }
    for (const auto& m : find_all(story, introduction)) {
      EXPECT_EQ(girls.contains(m[1]), m[2] == "girl") << story;
      EXPECT_EQ(m[2] == "girl", m[3] == "She") << story;
      ++introduced;
    }
  }
  EXPECT_GT(only_girls, 80);
  EXPECT_GT(only_boys, 80);
  EXPECT_GT(introduced, 50);
}

TEST(Stories, WhatIsGivenStaysWithTheReceiver) {
  const std::regex gift(R"(gave the (\w+ \w+) to (\w+)\.)");
  int gifts = 0;
  for (const std::string& story : stories()) {
    for (const auto& m : find_all(story, gift)) {
      // Among the later sentences there is one with both the receiver and the thing.
      const std::regex again("\\b" + m[2].str() + "\\b[^.!]*the " + m[1].str() + "\\b");
      EXPECT_FALSE(find_all(m.suffix().str(), again).empty()) << story;
      ++gifts;
    }
  }
  EXPECT_GT(gifts, 30);
}

TEST(Stories, WhatIsLostIsWhereItWasSeen) {
  const std::regex seen(R"re("(I think it is|I saw it) ([a-z ]+)," said)re");
  int found = 0;
  for (const std::string& story : stories()) {
    for (const auto& m : find_all(story, seen)) {
      EXPECT_NE(m.suffix().str().find("looked " + m[2].str() + "."), std::string::npos) << story;
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
