#include "weft/train/data_source.h"

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/data/byte_tokenizer.h"
#include "weft/data/entropy.h"
#include "weft/data/megatron_source.h"
#include "weft/data/packed_documents.h"
#include "weft/data/stories.h"
#include "weft/data/text_source.h"

namespace weft {

namespace {

bool validates(const TrainOptions& o) { return o.data.eval_interval > 0 && o.data.eval_iters > 0; }

// Samples that the run reads from train, valid and test.
std::array<std::int64_t, 3> samples_of(const TrainOptions& o) {
  const std::int64_t batch = o.batch.global_batch_size, iterations = o.batch.train_iters;
  const std::int64_t evaluations = validates(o) ? iterations / o.data.eval_interval + 1 : 0;
  return {iterations * batch, evaluations * o.data.eval_iters * batch, 0};
}

DocumentRules rules_of(const TrainOptions& o) {
  return {o.data.reset_attention_mask, o.data.reset_position_ids, o.data.eod_mask_loss};
}

// Whether the run has to know what ids mean.
bool needs_text(const TrainOptions& o) {
  return o.data.stories > 0 || !o.data.text.empty() || !o.logging.sample.empty() ||
         (rules_of(o).any() && !o.data.mock_data);
}

// UserError where nothing tells which token ends a document.
std::int32_t document_end(const TrainOptions& o, const Tokenizer* tokenizer, std::int64_t vocabulary) {
  if (tokenizer && tokenizer->eod() >= 0) return tokenizer->eod();
  if (o.data.mock_data) return static_cast<std::int32_t>(vocabulary - 1);
  const char* asked = o.data.reset_position_ids     ? "--reset-position-ids"
                      : o.data.reset_attention_mask ? "--reset-attention-mask"
                                                    : "--eod-mask-loss";
  if (tokenizer)
    throw UserError(
        "{}: the tokenizer names no token that ends a document; put a tokenizer_config.json with its eos_token beside "
        "it",
        asked);
  throw UserError(
      "{}: which token ends a document depends on the tokenizer of --hf {}, which the folder does not hold; name it "
      "with "
      "--tokenizer-model or --tokenizer-type",
      asked, o.model.hf);
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_of(const TrainOptions& o, std::int64_t vocabulary) {
  TokenizerChoice choice = o.data.tokenizer;
  if (o.model.hf.empty()) return tokenizer_of(choice);
  if (choice.type.empty() && choice.model.empty()) {
    if (needs_text(o) && !tokenizer_file_in(o.model.hf).empty()) {
      choice.model = o.model.hf;
    } else {
      if (vocabulary != ByteTokenizer().vocabulary_size()) return nullptr;
      choice.type = "ByteTokenizer";
    }
  }
  // A null tokenizer adds an id for the end of a document; in a loaded model it is the last one.
  if (choice.type == "NullTokenizer") choice.vocab_size = vocabulary - 1;
  return tokenizer_of(choice);
}

RunData open_run_data(const TrainOptions& o, std::int64_t vocabulary) {
  RunData run;
  run.tokenizer = tokenizer_of(o, vocabulary);
  const auto seed = static_cast<std::uint64_t>(o.data.seed);
  if (!o.data.data_path.empty() || !o.data.train_data_path.empty()) {
    MegatronDataOptions m;
    m.data_path = o.data.data_path;
    m.split_paths = {o.data.train_data_path, o.data.valid_data_path, {}};
    m.split = o.data.split;
    m.seq_length = o.batch.seq_length;
    m.vocabulary_size = vocabulary > 0 ? vocabulary : run.tokenizer->vocabulary_size();
    m.seed = static_cast<std::uint32_t>(seed);
    m.samples = samples_of(o);
    run.splits = open_megatron_data(m);
  } else if (o.data.mock_data) {
    MockDataOptions m;
    m.seq_length = o.batch.seq_length;
    // Mock tokens fit any loaded model, whatever its tokenizer.
    const bool loaded = !o.model.hf.empty();
    m.vocabulary_size = loaded ? vocabulary : run.tokenizer->vocabulary_size();
    m.eod = static_cast<std::int32_t>(m.vocabulary_size - 1);
    if (!loaded && run.tokenizer->eod() >= 0) m.eod = run.tokenizer->eod();
    m.split = o.data.split;
    m.seed = static_cast<std::uint32_t>(seed);
    m.samples = samples_of(o);
    run.splits = open_mock_data(m);
  } else {
    if (!run.tokenizer)
      throw UserError(
          "--hf {}: {} would be read as one token per byte, but the model has a tokenizer of its own with {} tokens, "
          "and "
          "the folder holds no tokenizer.json or tokenizer.model. Name it with --tokenizer-model, or use --data-path "
          "with "
          "token files made by it, or --mock-data; to train on bytes, use --tokenizer-type ByteTokenizer",
          o.model.hf, o.data.text.empty() ? "stories" : "--text " + o.data.text, vocabulary);
    TextDataOptions t;
    t.seq_length = o.batch.seq_length;
    t.seed = seed;
    if (!validates(o)) t.held_out = 0;
    const bool stories = o.data.text.empty();
    const std::string text =
        stories ? write_stories(seed, static_cast<std::size_t>(o.data.stories)) : read_file(o.data.text);
    run.splits = open_text_data(text, *run.tokenizer, t, stories ? "stories" : o.data.text);
    if (run.tokenizer->vocabulary_size() == ByteTokenizer().vocabulary_size())
      run.letter_entropy = letter_entropy(text);
  }
  const DocumentRules rules = rules_of(o);
  if (!rules.any()) return run;
  const std::int32_t end = document_end(o, run.tokenizer.get(), vocabulary);
  for (std::unique_ptr<TokenSource>* split : {&run.splits.train, &run.splits.valid, &run.splits.test})
    *split = with_documents(std::move(*split), end, rules);
  return run;
}

}  // namespace weft
