#include "weft/checkpoint/convert.h"

#include "weft/base/error.h"

namespace weft {
namespace {

std::unique_ptr<ModelSource> open_source(const ConvertOptions& options) {
  switch (options.from) {
    case CheckpointFormat::hugging_face:
      return open_hugging_face(options.in);
    case CheckpointFormat::weft:
      return open_weft(options.in);
    case CheckpointFormat::megatron:
      break;  // its model is made of flags, which this folder does not know
  }
  WEFT_CHECK(false, "no such format");
}

}  // namespace

ConvertResult convert_checkpoint(const ConvertOptions& options) {
  require_new_folder("--out", options.out);
  return convert_checkpoint(*open_source(options), options);
}

ConvertResult convert_checkpoint(const ModelSource& source, const ConvertOptions& options) {
  require_new_folder("--out", options.out);
  switch (options.to) {
    case CheckpointFormat::hugging_face:
      return write_hugging_face(source, options);
    case CheckpointFormat::weft:
      return write_weft(source, options);
    case CheckpointFormat::megatron:
      return write_megatron(source, options);
  }
  WEFT_CHECK(false, "no such format");
}

void require_optimizer(const ModelSource& source, const ConvertOptions& options) {
  if (!options.optimizer) return;
  if (const std::string problem = source.optimizer_problem(); !problem.empty()) throw UserError("{}", problem);
}

std::function<void(std::size_t)> progress_of(const ConvertOptions& options, std::size_t total) {
  if (!options.progress) return {};
  return [progress = options.progress, total, done = std::size_t{0}](std::size_t bytes) mutable {
    done += bytes;
    progress(done, total);
  };
}

}  // namespace weft
