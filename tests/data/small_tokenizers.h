// Small tokenizer files that use every part of their format.
#pragma once

#include <string>

namespace weft {

std::string small_byte_level_json();  // normal form, Split, ByteLevel, added tokens, template
std::string small_metaspace_json();   // Prepend, Replace, Metaspace, byte tokens, a sequence of decoders
std::string small_sentencepiece(bool bpe);
std::string small_tiktoken();
std::string small_tiktoken_json();

}  // namespace weft
