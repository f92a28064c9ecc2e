// tokenizer.json of Hugging Face: read, and a text encoded and decoded with it.
#include "tests/fuzz/fuzz.h"
#include "weft/data/tokenizers/hugging_face.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  read_or_refuse([&] {
    const auto tokenizer = parse_hugging_face_tokenizer(text_of(data, size), "x", std::nullopt);
    tokenizer->decode(tokenizer->encode("It's 12 <s>caf\xc3\xa9</s>\xe6\x97\xa5 \xe2\x96\x81\n\n  x"));
  });
  return 0;
}
