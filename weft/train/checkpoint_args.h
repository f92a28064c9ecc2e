// --use-checkpoint-args: the flags that make the model, out of a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/checkpoint/find_checkpoint.h"
#include "weft/train/options.h"

namespace weft {

// A flag and its value, as the checkpoint has it.
struct CheckpointArg {
  std::string name;  // there: "hidden_size"
  std::string flag;  // here: "--hidden-size"
  FlagValue value;
  bool is_default = false;  // the flag has its default
};

// Of Weft's own checkpoints: the flags under their own names. A model that came from a Hugging Face folder is described by
// the manifest, and so is one that no run has saved: --hf `folder`, that of the checkpoint.
std::vector<CheckpointArg> model_flags_of_weft(const Json& arguments, const std::string& folder);
// Of Megatron's args. UserError that names the arg: a model that Weft does not have. (megatron_args.cc)
std::vector<CheckpointArg> model_flags_of_megatron(const Json& args);

// The model of a Megatron checkpoint, resolved: model_config() of it is the model's.
TrainOptions options_of_megatron(const CheckpointPlace& place);
// Every flag of a run with its value, a JSON object: what checkpoints keep.
std::string flags_of_run(TrainOptions options);

// Sets the flags that the checkpoint of --load records, and leaves a note of those that it changes. UserError where a flag is
// set already to something else. Does nothing without --use-checkpoint-args.
void take_checkpoint_args(FlagTable& flags, const TrainOptions& options);

}  // namespace weft
