#include "tests/checkpoint/torch_dist/rewritten.h"

#include <nlohmann/json.hpp>

#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/checkpoint/torch_dist/torch_dist_writer.h"

namespace weft {
namespace {

// Of what is plain data but a dtype, "torch.float32".
PythonValue argument(const Json& value) {
  if (!value.is_string() || !value.get<std::string>().starts_with("torch.")) return PythonValue::from(value);
  return PythonValue::global("torch", value.get<std::string>().substr(6));
}

}  // namespace

void rewrite_checkpoint(const std::filesystem::path& from, const std::filesystem::path& folder,
                        const std::function<std::string(const std::string& name)>& name_of) {
  const TorchDistCheckpoint checkpoint(from);
  TorchDistWriter writer(folder, {.max_file_bytes = 200000});
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    ShardedTensorToWrite out{name_of ? name_of(tensor.name) : tensor.name, tensor.type, tensor.shape, {}};
    for (const TensorChunk& chunk : tensor.chunks) {
      const std::int64_t bytes = chunk.box.extent.elements() * bits_of(tensor.type) / 8;
      out.chunks.push_back({chunk.box, [&checkpoint, &tensor, &chunk, bytes](std::byte* to) {
                              checkpoint.read(tensor, chunk.box, {to, static_cast<std::size_t>(bytes)});
                            }});
    }
    writer.write(out);
  }
  for (const StoredObject& object : checkpoint.objects()) {
    if (object.name.find("._extra_state/") != std::string::npos || object.name.starts_with("common_state/")) continue;
    writer.write_item(object.name, checkpoint.stored_bytes(object.place));
  }
  PythonValue::Fields args, state;
  for (const auto& [name, value] : checkpoint.args().items()) args.emplace_back(name, argument(value));
  for (const auto& [name, value] : checkpoint.shared_state().items())
    state.emplace_back(name, name == "args" ? PythonValue::name_space(args) : PythonValue::from(value));
  writer.write_shared_state(PythonValue::fields(std::move(state)));
  writer.finish();
}

}  // namespace weft
