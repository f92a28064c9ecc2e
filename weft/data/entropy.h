// How well a text can be guessed by letter frequency alone: the loss that a language model has to beat.
#pragma once

#include <string_view>

namespace weft {

// Entropy of the byte frequencies, in nats per byte; 0 for an empty text.
double letter_entropy(std::string_view text);

}  // namespace weft
