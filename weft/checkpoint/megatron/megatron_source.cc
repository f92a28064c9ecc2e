#include "weft/checkpoint/megatron/megatron_source.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/parameter_list.h"

namespace weft {
namespace {

class MegatronSource : public ModelSource {
 public:
  MegatronSource(const std::filesystem::path& folder, const ModelConfig& config, const std::string& arguments)
      : checkpoint_(folder, config, MasterWeights::where_wider), arguments_(arguments) {
    description_.config = config;
    const Json& args = checkpoint_.files().args();
    const auto bf16 = args.find("bf16");
    description_.compute = bf16 != args.end() && *bf16 == true ? DType::bf16 : DType::f32;
    std::size_t absent = 0;
    std::string first;
    for (const ListedParameter& parameter : parameters_of(config)) {
      if (checkpoint_.has(Content::weight, parameter.identity)) continue;
      if (absent++ == 0) first = to_text(parameter.identity);
    }
    if (absent > 0)
      throw UserError("{}: {} parameters of the model that its args describe are not in it, {} first", folder.string(),
                      absent, first);
  }

  const ModelDescription& description() const override { return description_; }
  std::optional<StoredType> type_of(Content content, const ParameterIdentity& identity) const override {
    return checkpoint_.type_of(content, identity);
  }
  void read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
            std::span<std::byte> out) const override {
    checkpoint_.read(content, identity, shape, type, out);
  }
  void read(Content content, const ParameterPart& part, HostTensor& tensor) const override {
    checkpoint_.read(content, part, tensor);
  }
  std::size_t tensors() const override { return checkpoint_.files().tensors().size(); }
  std::optional<SavedRun> run() const override {
    if (!checkpoint_.of_run()) return std::nullopt;
    const Json& args = checkpoint_.files().args();
    const auto ranks = args.find("world_size");
    return SavedRun{checkpoint_.position(),
                    ranks != args.end() && ranks->is_number_integer() ? ranks->get<std::int64_t>() : 1, arguments_};
  }

 private:
  MegatronCheckpoint checkpoint_;
  std::string arguments_;
  ModelDescription description_;
};

}  // namespace

std::unique_ptr<ModelSource> open_megatron(const CheckpointPlace& place, const ModelConfig& config,
                                           const std::string& arguments) {
  return std::make_unique<MegatronSource>(place.folder, config, arguments);
}

}  // namespace weft
