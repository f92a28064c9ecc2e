#include "weft/data/story_plots.h"

namespace weft::story {

// Keys: hero he his him child(girl/boy); friend fhe fhis fhim; place("river") where("by the river") spot;
// thing("red kite") a_thing noun; thing2 a_thing2 noun2; color; n_a b n_b sum n_sum taken n_left were_left n_k items;
// animal a_animal sound food; animal2 a_animal2 animals2 sound2 food2; pet; meal; parent; nature feeling weather;
// winner loser.

Lines opening() {
  return {
      {"One day {hero} went to the {place} with {friend}.", "{hero} and {friend} were {where}.",
       "One morning {hero} met {friend} {where}.",
       "{hero} was {a_nature} {child}. {He} lived near the {place}. {His} best friend was {friend}.",
       "Once there was {a_nature} {child}. {His} name was {hero}. {He} liked to play {where} with {friend}."},
      {"It was a {weather} day.", "", "The day was {weather}.", ""},
  };
}

Lines closing() {
  return {
      {"{hero} and {friend} were {feeling}.", "Then {hero} and {friend} went home.", "{hero} and {friend} smiled.",
       "It was a good day for {hero} and {friend}.", "\"That was a good day,\" said {friend}.",
       "\"I am {feeling},\" said {friend}."},
  };
}

std::vector<Plot> plots() {
  return {
      // A gift: who has the thing now?
      {{{"{hero} had {a_thing}.", "{hero} found {a_thing} {where}.", "{hero} had {a_thing} in {his} bag."},
        {"\"Can I have the {noun}?\" asked {friend}.", "\"I like your {noun},\" said {friend}.",
         "{friend} was sad, for {fhe} had no {noun}."},
        {"\"This is for you,\" said {hero}.", "\"You can have it,\" said {hero}.", ""},
        {"{hero} gave the {thing} to {friend}."},
        {"\"Thank you, {hero}!\" said {friend}.", "{friend} was very happy.", ""}},
       {{"In the evening {friend} put the {thing} next to {fhis} bed.", "{friend} took the {thing} home.",
         "{friend} still had the {thing} in {fhis} hand.", "{friend} showed the {thing} to {fhis} {parent}."}}},
      // Something lost: where is it?
      {{{"{hero} could not find {his} {thing}.", "{hero} had lost {his} {thing}."},
        {"\"Where is my {noun}?\" asked {hero}.", "{hero} was sad and began to cry."},
        {"\"I saw it {spot},\" said {friend}.", "\"I think it is {spot},\" said {friend}."}},
       {{"Then {hero} looked {spot}.", "So they went and looked {spot}."},
        {"There was the {thing}!"},
        {"\"I have my {noun} again!\" said {hero}.", "{hero} was so happy.", ""}}},
      // A swap: both hands change.
      {{{"{hero} had {a_thing} and {friend} had {a_thing2}."},
        {"\"I like your {noun2},\" said {hero}.", "\"Your {noun2} is nice,\" said {hero}."},
        {"\"And I like your {noun},\" said {friend}.", "\"Then let us swap,\" said {friend}."},
        {"So they swapped.", "So {hero} gave {friend} the {noun} and {friend} gave {hero} the {noun2}."}},
       {{"Now {hero} had the {thing2} and {friend} had the {thing}.",
         "All day {hero} played with the {thing2}, and {friend} played with the {thing}."}}},
      // A loan: it comes back.
      {{{"{friend} had {a_thing}.", "{friend} had got {a_thing} from {fhis} {parent}."},
        {"\"Can I have it for one day?\" asked {hero}.", "{hero} asked if {he} could have it for one day."},
        {"\"Yes, but bring it back,\" said {friend}."},
        {"{hero} took the {thing} with {him}.", "{hero} was happy and took the {thing}."}},
       {{"In the evening {hero} gave the {thing} back to {friend}.", "{hero} brought the {thing} back to {friend}."},
        {"\"Thank you for the {noun},\" said {hero}.", "\"Here is your {noun},\" said {hero}.", ""}}},
      // A change: what color is it now?
      {{{"{hero} had an old {noun}.", "{friend} gave {hero} an old {noun}."},
        {"\"I will paint it {color},\" said {hero}.", "\"Let us paint it {color},\" said {friend}."},
        {"{hero} painted the {noun}.", "They painted the {noun} together."}},
       {{"\"What a nice {color} {noun}!\" said {his} {parent}.", "Now {hero} had a {color} {noun}.",
         "Soon the {noun} was dry. It was {color} now."}}},
      // An errand: how many, and for whom?
      {{{"\"Please bring me {n_k},\" said {his} {parent}.", "{His} {parent} wanted {n_k}."},
        {"\"I will,\" said {hero}.", "{hero} took a bag and went out.", ""}},
       {{"{hero} did not forget.", "Then {hero} remembered.", ""},
        {"{He} brought {n_k} to {his} {parent}.", "{He} gave {his} {parent} {n_k}."},
        {"\"Thank you, {hero},\" said {his} {parent}.", ""}}},
      // A race: who was faster?
      {{{"\"Let us run to the {place2},\" said {hero}.", "{friend} wanted to run to the {place2} with {hero}."},
        {"They ran and ran.", "\"One, two, three, go!\" said {friend}.", ""},
        {"{winner} was fast and {loser} was slow."}},
       {{"So {winner} came to the {place2} first.", "{winner} won the race to the {place2}."},
        {"\"Next time you will win,\" {winner} said to {loser}.", "\"Well done, {winner}!\" said {loser}.", ""}}},
      // A pet: what was its name?
      {{{"{hero} had {a_animal}. Its name was {pet}.", "{hero} had {a_animal}. {He} called it {pet}.",
         "{hero} had {a_animal} with the name {pet}."},
        {"{pet} liked to eat {food}.", "\"{sound}!\" said {pet}.", "{friend} liked {pet} very much."},
        {"Then {pet} ran away.", "But that day {pet} was not there."}},
       {{"\"{pet}, where are you?\" called {hero}.", "{hero} looked for {his} {animal}."},
        {"\"{sound}!\" said the {animal}. It was {pet}!", "{pet} the {animal} came out and said, \"{sound}!\""},
        {"{hero} gave {pet} some {food}.", "{hero} was so happy.", ""}}},
      // Hide and seek.
      {{{"\"Let us play,\" said {friend}.", "They wanted to play hide and seek."},
        {"{friend} hid {spot}.", "{friend} went to hide {spot}."},
        {"{hero} closed {his} eyes."}},
       {{"\"Where are you, {friend}?\" called {hero}.", "{hero} looked and looked.", ""},
        {"{He} found {friend} {spot}."}}},
  };
}

std::vector<Lines> episodes() {
  return {
      // Sums.
      {{"{hero} had {n_a}."},
       {"{He} found {b} more.", "{He} got {b} more.", "{friend} gave {him} {b} more."},
       {"Now {he} had {n_sum}."}},
      {{"{friend} saw {n_a} on the ground.", "There were {n_a} on the ground."},
       {"Then {friend} found {b} more.", "Then {hero} found {b} more."},
       {"Now there were {n_sum}."}},
      {{"{hero} had {n_a}."},
       {"{He} found {b} more.", "{He} got {b} more."},
       {"\"How many {items} do you have?\" asked {friend}."},
       {"\"I have {sum},\" said {hero}.", "\"Now I have {n_sum},\" said {hero}."}},
      {{"{hero} had {n_a}."},
       {"{He} gave {taken} to {friend}.", "{He} gave {friend} {taken}.", "{He} lost {taken}."},
       {"Now {he} had {n_left} left."}},
      {{"There were {n_a} on the table."},
       {"{hero} took {taken}.", "{friend} took {taken}."},
       {"Now there {were_left} {n_left} left."}},
      {{"{hero} had {n_a} and {friend} had {n_b}."}, {"Together they had {n_sum}."}},
      // One animal, or two.
      {{"{A_animal2} came along.", "They saw {a_animal2} {where}."},
       {"It was hungry.", ""},
       {"\"{sound2}!\" said the {animal2}."},
       {"They gave it some {food2}.", "{hero} gave it some {food2}."}},
      {{"Two {animals2} came along.", "They saw two {animals2} {where}."},
       {"They were hungry.", ""},
       {"\"{sound2}, {sound2}!\" said the {animals2}."},
       {"{friend} gave them some {food2}.", "{hero} gave them some {food2}."}},
      // The weather.
      {{"Then it began to rain.", "Soon it rained."},
       {"They sat under a tree and got wet.", "They ran under a tree."},
       {"At last the sun came out."}},
      {{"Then a cold wind came.", "Soon the wind was strong."},
       {"It took the hat of {friend} away.", "It took the hat of {hero} away."},
       {"They ran and got the hat back."}},
      {{"Then it began to snow.", "Soon there was snow."}, {"They made a snowman.", "They made a big snowman."}},
      // Food.
      {{"\"I am hungry,\" said {hero}.", "{hero} was hungry."},
       {"{friend} had some {meal}.", "{His} {parent} had made some {meal}."},
       {"They ate the {meal}.", "The {meal} was very good."}},
      // A view.
      {{"{hero} climbed up a tall tree.", "They climbed up a tall tree."},
       {"\"I can see the {place2} from here,\" {he} said.", "\"Look, there is the {place2}!\" said {hero}."},
       {"\"I want to see the {place2} too,\" said {friend}.", ""}},
  };
}

}  // namespace weft::story
