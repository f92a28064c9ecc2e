// The words that fill the plots of the stories (story_plots.h).
#pragma once

#include <array>
#include <string_view>

namespace weft::story {

struct Animal {
  std::string_view name, plural, sound, food;
};
struct Place {
  std::string_view name, where;  // "river", "by the river"
};
struct Countable {
  std::string_view one, many;
};

constexpr std::array<std::string_view, 12> girls = {"Anna", "Mia",  "Lily", "Rosa", "Emma",  "Nina",
                                                    "Ella", "Sara", "Zoe",  "Ruth", "Clara", "Jane"};
constexpr std::array<std::string_view, 12> boys = {"Tom",  "Ben",  "Max",  "Leo",  "Sam",  "Jack",
                                                   "Finn", "Hugo", "Otto", "Paul", "Noah", "Bill"};
constexpr std::array<std::string_view, 6> pet_names = {"Spot", "Coco", "Pip", "Rex", "Momo", "Lucky"};
constexpr std::array<std::string_view, 4> family = {"mother", "father", "sister", "brother"};

constexpr std::array<Place, 12> places = {{{"park", "in the park"},
                                           {"garden", "in the garden"},
                                           {"forest", "in the forest"},
                                           {"field", "in the field"},
                                           {"river", "by the river"},
                                           {"lake", "by the lake"},
                                           {"sea", "by the sea"},
                                           {"old mill", "by the old mill"},
                                           {"beach", "on the beach"},
                                           {"hill", "on the hill"},
                                           {"farm", "on the farm"},
                                           {"market", "at the market"}}};
constexpr std::array<std::string_view, 8> spots = {"under the bed",     "behind the door",   "under a bench",
                                                   "behind a big tree", "in the tall grass", "in the old barn",
                                                   "under the stairs",  "behind the wall"};

constexpr std::array<std::string_view, 16> things = {"ball", "kite", "book", "hat",  "drum", "boat", "doll",  "cup",
                                                     "bell", "key",  "box",  "lamp", "coat", "ring", "spoon", "flute"};
constexpr std::array<std::string_view, 6> colors = {"red", "blue", "green", "yellow", "white", "black"};
constexpr std::array<std::string_view, 10> adjectives = {"red",   "blue", "green", "yellow", "white",
                                                         "black", "big",  "small", "old",    "orange"};
constexpr std::array<Countable, 10> countables = {{{"apple", "apples"},
                                                   {"pear", "pears"},
                                                   {"plum", "plums"},
                                                   {"nut", "nuts"},
                                                   {"egg", "eggs"},
                                                   {"shell", "shells"},
                                                   {"stone", "stones"},
                                                   {"flower", "flowers"},
                                                   {"berry", "berries"},
                                                   {"leaf", "leaves"}}};

constexpr std::array<Animal, 9> animals = {{{"dog", "dogs", "Woof", "meat"},
                                            {"cat", "cats", "Meow", "milk"},
                                            {"duck", "ducks", "Quack", "bread"},
                                            {"hen", "hens", "Cluck", "corn"},
                                            {"cow", "cows", "Moo", "grass"},
                                            {"pig", "pigs", "Oink", "carrots"},
                                            {"mouse", "mice", "Squeak", "cheese"},
                                            {"bird", "birds", "Tweet", "seeds"},
                                            {"owl", "owls", "Hoo", "berries"}}};
constexpr std::array<std::string_view, 5> meals = {"soup", "bread", "rice", "cake", "fish"};
constexpr std::array<std::string_view, 6> natures = {"kind", "brave", "shy", "happy", "clever", "quiet"};
constexpr std::array<std::string_view, 4> feelings = {"happy", "glad", "proud", "tired"};
constexpr std::array<std::string_view, 5> weathers = {"sunny", "warm", "cold", "windy", "lovely"};

}  // namespace weft::story
