// A checkpoint of Megatron's form torch_dist as one of a given model.
//
// Its keys are recognised: stacked or per layer, layers numbered by items of the pattern, by symbols, by those of the
// checkpoint's own pattern or as a transformer counts, MTP as transformer_layer or mtp_model_layer, and the variants of
// key_variants.h. Everything named _extra_state is dropped, and so are rows of the vocabulary's padding,
// unless the model has as many.
//
// Which tensor gives a weight: where a master is kept that is wider than the model's tensor (BF16 beside F32), the master,
// as a resumed run of Megatron's goes on from it: its first update overwrites the model's tensor. Where the model's tensor is
// as wide, that one: Megatron then keeps no master of its own.
//
// What could be read in two ways is a UserError that names both tensors: two of one key once prefixes are gone, masters of
// two optimizers, two spellings of one parameter; and so is a set of masters that lacks some.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint_reader.h"
#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/model/config.h"

namespace weft {

enum class MasterWeights : std::uint8_t {
  where_wider,
  never,  // as without the optimizer's state, or with --load-main-params-from-ckpt
};

// Reads something of every chunk, and with it compares every checksum. verified: told the bytes of each.
void verify_tensors(const TorchDistCheckpoint& files, const std::function<void(std::size_t bytes)>& verified = {});

class MegatronCheckpoint : public CheckpointReader {
 public:
  // folder: iter_0000007, or the one above. UserError for what cannot be read (megatron_folder.h).
  MegatronCheckpoint(const std::filesystem::path& folder, const ModelConfig& config, MasterWeights masters);

  const TorchDistCheckpoint& files() const { return files_; }

  const std::filesystem::path& folder() const override { return files_.folder(); }
  bool of_run() const override { return folder().filename() != "release"; }  // as Megatron has it
  RunPosition position() const override;
  std::string pattern() const override;
  Json arguments() const override { return files_.args(); }
  bool has(Content content, const ParameterIdentity& identity) const override;
  std::string optimizer_problem() const override;
  void read(Content content, const ParameterPart& part, HostTensor& tensor) const override;
  // The type that it is stored in; nothing: it is not there.
  std::optional<StoredType> type_of(Content content, const ParameterIdentity& identity) const;
  // Writes the whole parameter, [shape] of `type`, row-major: bit for bit where it is stored in that type.
  void read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
            std::span<std::byte> out) const;
  std::vector<CheckpointTensor> tensors() const override;
  std::vector<std::string> others(const std::set<ParameterIdentity>& model) const override;
  void verify() const override { verify_tensors(files_); }

 private:
  enum State : std::size_t { model_state, master_state, first_moment_state, second_moment_state, states };
  using Keys = std::map<std::string, const ShardedTensor*, std::less<>>;
  struct Place {
    const ShardedTensor* tensor = nullptr;
    std::vector<const DiskPart*> parts;
  };
  using Places = std::map<ParameterIdentity, std::vector<Place>>;

  void sort_keys();
  void add_key(State state, std::string_view key, const ShardedTensor& tensor);
  std::vector<DiskTensor> recognise(const ModelConfig& config) const;
  void find_places(const std::vector<DiskTensor>& tensors, State state);
  void require_all_masters() const;
  void check_vocabulary(const ModelConfig& config, const std::string& key, std::int64_t rows) const;
  const std::vector<Place>* places_of(Content content, const ParameterIdentity& identity) const;
  using VisitPlace = std::function<void(const Place& place, const DiskPart& stored)>;
  void each_place(Content content, const ParameterIdentity& identity, const Shape& shape,
                  const VisitPlace& visit) const;

  TorchDistCheckpoint files_;
  MasterWeights masters_;
  ModelConfig config_;
  std::array<Keys, states> keys_;       // by key, without prefixes
  std::vector<std::string> strangers_;  // tensors that are no state of the model
  std::deque<DiskTensor> tensors_;      // as they are on disk
  std::array<Places, states> places_;
  std::set<const ShardedTensor*> used_;
};

}  // namespace weft
