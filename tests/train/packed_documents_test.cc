// Documents that share a sample and do not see each other train as if each had a sample of its own.
#include "weft/data/packed_documents.h"

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"

namespace weft {
namespace {

constexpr std::int64_t length = 10, half = length / 2;
constexpr std::int32_t end = 0;

RankCase every_kind(const char* pattern) {
  RankCase c = small_case(pattern);
  c.length = length;
  c.config.latent_attention = {.heads = 2, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
  c.config.latent_attention.indexer.heads = 2;
  c.config.latent_attention.indexer.dim = 4;
  c.config.latent_attention.indexer.topk = 3;
  c.config.latent_attention.indexer.loss_factor = 0.1;
  return c;
}

// `half` tokens of one document, of which the last ends it.
MicroBatch document(const RankCase& c, std::int64_t step, std::int64_t number) {
  RankCase one = c;
  one.length = half;
  MicroBatch b = batch_of(one, step, number);
  for (std::int32_t& token : b.tokens) token += token == end ? 1 : 0;
  b.tokens.back() = end;
  std::copy(b.tokens.begin() + 1, b.tokens.end(), b.labels.begin());
  return b;
}

MicroBatch packed(const MicroBatch& first, const MicroBatch& second) {
  MicroBatch b = first;
  b.length = length;
  b.tokens.insert(b.tokens.end(), second.tokens.begin(), second.tokens.end());
  b.labels.insert(b.labels.end(), second.labels.begin(), second.labels.end());
  b.labels[half - 1] = second.tokens.front();
  mark_documents(b, end, {.separate = true, .reset_positions = true, .skip_ends = true});
  return b;
}

MicroBatch alone(MicroBatch b) {
  b.length = length;
  b.labels[half - 1] = -1;
  b.tokens.resize(length, 5);
  b.labels.resize(length, -1);
  return b;
}

std::vector<StepResult> steps_of(const RankCase& c, bool together) {
  SessionOptions o = options_of(c, nullptr);
  o.plan.micro_batches = together ? 1 : 2;
  if (together) o.packing = {.separate = true, .reset_positions = true};
  CpuDevice device;
  Session session(device, o);
  session.initialise_parameters(3);
  std::vector<StepResult> results;
  for (int step = 0; step < 3; ++step) {
    const MicroBatch first = document(c, step, 0), second = document(c, step, 1);
    std::vector<MicroBatch> batches;
    if (together)
      batches = {packed(first, second)};
    else
      batches = {alone(first), alone(second)};
    results.push_back(session.step(batches, 1e-2, 0.1));
  }
  return results;
}

class PackedTraining : public testing::TestWithParam<const char*> {};

TEST_P(PackedTraining, is_that_of_each_document_alone) {
  const RankCase c = every_kind(GetParam());
  const std::vector<StepResult> together = steps_of(c, true), apart = steps_of(c, false);
  for (std::size_t i = 0; i < together.size(); ++i) {
    EXPECT_NEAR(together[i].loss, apart[i].loss, 1e-10) << "step " << i;
    EXPECT_NEAR(*together[i].gradient_norm, *apart[i].gradient_norm, 1e-9) << "step " << i;
    ASSERT_EQ(together[i].mtp_losses.size(), apart[i].mtp_losses.size());
    for (std::size_t d = 0; d < together[i].mtp_losses.size(); ++d)
      EXPECT_NEAR(together[i].mtp_losses[d], apart[i].mtp_losses[d], 1e-10) << "step " << i << " depth " << d + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, PackedTraining,
                         testing::Values("*-", "[*E]", "+-", "M-", "G-", "MG*E/*E/*E", "+E/+E"));

// The indexer's loss is a mean over all tokens, also those that fill a sample, so only what it chooses is compared.
TEST(PackedSamples, of_sparse_attention_is_that_of_each_document_alone) {
  RankCase c = every_kind("D-");
  c.config.latent_attention.indexer.loss_factor = 0;
  const std::vector<StepResult> together = steps_of(c, true), apart = steps_of(c, false);
  for (std::size_t i = 0; i < together.size(); ++i) {
    EXPECT_NEAR(together[i].loss, apart[i].loss, 1e-10) << "step " << i;
    EXPECT_NEAR(*together[i].gradient_norm, *apart[i].gradient_norm, 1e-9) << "step " << i;
  }
}

// Each of the rules changes the loss: a document that sees another is another document.
TEST(PackedSamples, depends_on_what_documents_see) {
  const RankCase c = every_kind("*-");
  const MicroBatch both = packed(document(c, 0, 0), document(c, 0, 1));
  std::vector<double> losses;
  for (const Packing packing : {Packing{}, Packing{true, false}, Packing{false, true}, Packing{true, true}}) {
    SessionOptions o = options_of(c, nullptr);
    o.plan.micro_batches = 1;
    o.packing = packing;
    CpuDevice device;
    Session session(device, o);
    session.initialise_parameters(3);
    losses.push_back(session.step(std::span(&both, 1), 1e-2, 0).loss);
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[0], losses[2]);
  EXPECT_NE(losses[2], losses[3]);
  EXPECT_NEAR(losses[1], losses[3], 1e-12) << "angles between tokens of one document do not depend on where it begins";
}

}  // namespace
}  // namespace weft
