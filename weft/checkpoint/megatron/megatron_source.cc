#include "weft/checkpoint/megatron/megatron_source.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/parameter_list.h"

namespace weft {
namespace {

class MegatronSource : public ModelSource {
 public:
  MegatronSource(const std::filesystem::path& folder, const ModelDescription& description, const std::string& arguments,
                 MasterWeights masters)
      : checkpoint_(folder, description.config, masters), arguments_(arguments), description_(description) {
    const ModelConfig& config = description_.config;
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
  std::string optimizer_problem() const override {
    const std::string where = checkpoint_.folder().string();
    if (const std::string problem = checkpoint_.optimizer_problem(); !problem.empty())
      return fmt::format("{}: {}", where, problem);
    const std::vector<ListedParameter> parameters = parameters_of(description_.config);
    bool some = false;
    std::string absent;
    for (const ListedParameter& parameter : parameters) {
      for (const Content content : {Content::first_moment, Content::second_moment}) {
        const bool there = checkpoint_.has(content, parameter.identity);
        some = some || there;
        if (!there && parameter.trained && absent.empty())
          absent = fmt::format("the {} of {}", in_words(content), to_text(parameter.identity));
      }
    }
    if (!some || absent.empty()) return "";
    return fmt::format(
        "{}: {} is not in it, though other state of the optimizer is; take the weights alone with "
        "--no-load-optim",
        where, absent);
  }
  std::size_t tensors() const override { return checkpoint_.files().tensors().size(); }
  SideFiles side_files() const override {
    const std::filesystem::path folder = checkpoint_.folder() / megatron_side_folder;
    std::error_code error;  // what cannot be looked at is not there
    return std::filesystem::is_directory(folder, error) ? read_side_files(folder) : SideFiles();
  }
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
                                           const std::string& arguments, MasterWeights masters) {
  ModelDescription description{.config = config};
  const TorchDistCheckpoint files(place.folder);
  const auto bf16 = files.args().find("bf16");
  description.compute = bf16 != files.args().end() && *bf16 == true ? DType::bf16 : DType::f32;
  return std::make_unique<MegatronSource>(place.folder, description, arguments, masters);
}

std::unique_ptr<ModelSource> open_megatron_of_weft(const CheckpointPlace& place, MasterWeights masters) {
  const TorchDistCheckpoint files(place.folder);
  const auto weft = files.shared_state().find("weft");
  if (weft == files.shared_state().end() || !weft->is_object() || !weft->contains("model")) return nullptr;
  const std::string where = fmt::format("{}: shared state: weft", place.folder.string());
  const auto arguments = weft->find("arguments");
  return std::make_unique<MegatronSource>(place.folder, model_description_of(weft->at("model"), where),
                                          arguments != weft->end() && arguments->is_object() ? arguments->dump() : "{}",
                                          masters);
}

}  // namespace weft
