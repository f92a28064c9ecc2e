#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/hf_family.h"

namespace weft {

std::vector<HuggingFaceFamily> hugging_face_families() {
  return {llama_family(),        mixtral_family(), qwen3_moe_family(),  gpt_oss_family(),   deepseek_v3_family(),
          deepseek_v32_family(), mamba2_family(),  nemotron_h_family(), qwen3_next_family()};
}

std::string family_list() {
  std::vector<std::string> known;
  for (const HuggingFaceFamily& family : hugging_face_families()) known.emplace_back(family.name);
  return join(known, ", ");
}

std::string family_layers() {
  std::vector<std::string> known;
  for (const HuggingFaceFamily& family : hugging_face_families())
    known.push_back(fmt::format("{} {}", family.name, family.layers));
  return join(known, ", ");
}

HuggingFaceFamily family_named(const std::string& name) {
  for (HuggingFaceFamily& family : hugging_face_families())
    if (family.name == name) return family;
  throw UserError("--hf-family {}: Weft does not know it; it knows {}", name, family_list());
}

HuggingFaceFamily family_named(const std::string& name, const std::string& where) {
  for (HuggingFaceFamily& family : hugging_face_families()) {
    if (family.name == name) return family;
  }
  throw UserError("{}: 'model_type' is \"{}\", a family that Weft does not know; it knows {}", where, name,
                  family_list());
}

}  // namespace weft
