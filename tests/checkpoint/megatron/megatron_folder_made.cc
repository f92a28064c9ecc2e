#include "tests/checkpoint/megatron/megatron_folder_made.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {

float rounded_to_bf16(float value) {
  std::uint16_t bits = 0;
  store(DType::f32, reinterpret_cast<const std::byte*>(&value), StoredType::bf16, reinterpret_cast<std::byte*>(&bits),
        1);
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

float made_value(Content content, const ParameterIdentity& identity, std::int64_t index) {
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(content), to_text(identity));
  return static_cast<float>(random_below(key, static_cast<std::uint64_t>(index), 1 << 20)) / 1024;
}

MadeTensors made_tensors(const std::vector<DiskTensor>& tensors, Content content, const std::string& prefix) {
  MadeTensors made;
  for (const DiskTensor& tensor : tensors) {
    MadeTensor out{prefix + tensor.name, {}, {}};
    for (int d = 0; d < tensor.shape.dims(); ++d) out.shape.push_back(tensor.shape[d]);
    out.values.resize(static_cast<std::size_t>(tensor.shape.elements()));
    check_covered(tensor);
    for (const auto& [identity, parts] : parts_by_parameter(tensor)) {
      std::vector<float> values(static_cast<std::size_t>(parts[0]->parameter.elements()));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = made_value(content, identity, static_cast<std::int64_t>(i));
      for (const DiskPart* part : parts)
        scatter_part(reinterpret_cast<const std::byte*>(values.data()), *part, tensor.shape, sizeof(float),
                     reinterpret_cast<std::byte*>(out.values.data()));
    }
    made.push_back(std::move(out));
  }
  return made;
}

MadeTensor& find_made(MadeTensors& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const MadeTensor& t) { return t.name == name; });
  WEFT_CHECK(at != tensors.end(), "there is no {}", name);
  return *at;
}

namespace {

MadeTensor taken(MadeTensors& tensors, const std::string& name) {
  MadeTensor tensor = find_made(tensors, name);
  std::erase_if(tensors, [&](const MadeTensor& t) { return t.name == name; });
  return tensor;
}

}  // namespace

void cut_experts(MadeTensors& tensors, const std::string& name,
                 const std::function<std::string(std::size_t expert)>& name_of_expert) {
  const MadeTensor whole = taken(tensors, name);
  const auto experts = static_cast<std::size_t>(whole.shape[0]);
  const auto each = static_cast<std::ptrdiff_t>(whole.values.size() / experts);
  for (std::size_t e = 0; e < experts; ++e) {
    const auto begin = whole.values.begin() + static_cast<std::ptrdiff_t>(e) * each;
    tensors.push_back(
        {name_of_expert(e), {whole.shape.begin() + 1, whole.shape.end()}, {begin, begin + each}, whole.bf16});
  }
}

void put_experts_below(MadeTensors& tensors, const std::string& name) {
  MadeTensor& tensor = find_made(tensors, name);
  tensor.shape[1] *= tensor.shape[0];
  tensor.shape.erase(tensor.shape.begin());
}

void cut_halves(MadeTensors& tensors, const std::string& name) {
  MadeTensor whole = taken(tensors, name);
  const auto middle = whole.values.begin() + static_cast<std::ptrdiff_t>(whole.values.size() / 2);
  whole.shape[0] /= 2;
  tensors.push_back({name + "_w", whole.shape, {whole.values.begin(), middle}, whole.bf16});
  tensors.push_back({name + "_v", whole.shape, {middle, whole.values.end()}, whole.bf16});
}

void join_rows(MadeTensors& tensors, const std::vector<std::string>& names, const std::string& joined) {
  MadeTensor whole{joined, {}, {}};
  for (const std::string& name : names) {
    const MadeTensor part = taken(tensors, name);
    const std::int64_t rows = whole.shape.empty() ? 0 : whole.shape[0];
    whole.shape = part.shape;
    whole.shape[0] += rows;
    whole.values.insert(whole.values.end(), part.values.begin(), part.values.end());
  }
  tensors.push_back(std::move(whole));
}

void write_made(const ModelFolder& folder, const MadeTensors& tensors, const PickledFields& args,
                const PickledFields& more) {
  using namespace written;
  Checkpoint checkpoint;
  for (const MadeTensor& tensor : tensors) {
    TensorItem item;
    item.shape = tensor.shape;
    if (tensor.bf16) {
      item.storage = "BFloat16Storage";
      item.data.resize(tensor.values.size() * 2);
      store(DType::f32, reinterpret_cast<const std::byte*>(tensor.values.data()), StoredType::bf16,
            reinterpret_cast<std::byte*>(item.data.data()), std::ssize(tensor.values));
    } else {
      item.data.assign(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    }
    const std::vector<std::int64_t> first(tensor.shape.size(), 0);
    checkpoint.tensors.push_back(
        {tensor.name, tensor.shape, {{first, tensor.shape, saved_tensor(item)}}, tensor.bf16 ? "bfloat16" : "float32"});
  }
  PickledFields state = {{"args", object(global("argparse", "Namespace"), fields(args))}, {"iteration", integer(7)}};
  state.insert(state.end(), more.begin(), more.end());
  checkpoint.objects = {{"common_state/shard_0_1", zip({{"archive/data.pkl", pickle(list({fields(state)}))}})}};
  checkpoint.lay_out();
  checkpoint.write(folder);
}

}  // namespace weft
