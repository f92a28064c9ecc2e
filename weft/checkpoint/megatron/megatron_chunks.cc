#include "weft/checkpoint/megatron/megatron_chunks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace weft {
namespace {

std::size_t at(int dim) { return static_cast<std::size_t>(dim); }

bool is_dense(const DiskPart& part) {
  for (int d = 0; d < part.extent.dims(); ++d)
    if (part.extent[d] > 1 && part.step[at(d)] != 1) return false;
  return true;
}

// Every part is a parameter of its own, all of it.
bool is_of_whole_parameters(const DiskTensor& tensor) {
  std::set<ParameterIdentity> identities;
  for (const DiskPart& part : tensor.parts) {
    if (!is_dense(part) || part.extent.elements() != part.parameter.elements()) return false;
    if (!identities.insert(part.identity).second) return false;
  }
  return true;
}

MegatronChunk chunk_of(const DiskTensor& tensor, const Box& box, std::vector<DiskPart> parts) {
  DiskTensor inside{tensor.name, box.extent, std::move(parts), tensor.type, false};
  for (DiskPart& part : inside.parts)
    for (int d = 0; d < box.extent.dims(); ++d) part.begin[at(d)] -= box.begin[at(d)];
  return {box, std::move(inside)};
}

}  // namespace

std::vector<MegatronChunk> megatron_chunks(const DiskTensor& tensor) {
  std::vector<MegatronChunk> chunks;
  if (is_of_whole_parameters(tensor)) {
    for (const DiskPart& part : tensor.parts) chunks.push_back(chunk_of(tensor, {part.begin, part.extent}, {part}));
    std::sort(chunks.begin(), chunks.end(),
              [](const MegatronChunk& a, const MegatronChunk& b) { return a.box.begin < b.box.begin; });
    return chunks;
  }
  // Parameters in turns: those of a layer belong together.
  std::map<std::int64_t, std::vector<DiskPart>> layers;  // by the index on the axis of layers
  const bool stacked =
      std::all_of(tensor.parts.begin(), tensor.parts.end(), [](const DiskPart& part) { return part.extent[0] == 1; });
  for (const DiskPart& part : tensor.parts) layers[stacked ? part.begin[0] : 0].push_back(part);
  for (auto& [layer, parts] : layers) {
    Box box{{layer}, {}};
    for (int d = 0; d < tensor.shape.dims(); ++d) box.extent.append(d == 0 && stacked ? 1 : tensor.shape[d]);
    chunks.push_back(chunk_of(tensor, box, std::move(parts)));
  }
  return chunks;
}

}  // namespace weft
