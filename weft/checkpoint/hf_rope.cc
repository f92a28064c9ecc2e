#include <cmath>

#include "weft/base/error.h"
#include "weft/checkpoint/hf_config.h"

namespace weft {
namespace {

using Sign = ConfigReader::Sign;

constexpr double max_base = 1e15;

double required_factor(const ConfigReader& rope) { return rope.number("factor", Sign::positive); }

// YaRN's factor on cosine and sine where the config does not give it.
double yarn_magnitude(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

double original_positions(const ConfigReader& config, const ConfigReader& rope) {
  const char* const key = "original_max_position_embeddings";
  if (config.has(key)) return static_cast<double>(config.integer(key));  // it wins over the one in the object
  return static_cast<double>(rope.has(key) ? rope.integer(key) : config.integer("max_position_embeddings"));
}

void read_llama3(const ConfigReader& config, const ConfigReader& rope, RopeSpec& spec) {
  spec.scaling = RopeSpec::Scaling::llama3;
  spec.factor = required_factor(rope);
  spec.low_frequency = rope.number("low_freq_factor", Sign::positive);
  spec.high_frequency = rope.number("high_freq_factor", Sign::positive);
  if (spec.high_frequency <= spec.low_frequency) rope.refuse("high_freq_factor", "it must exceed low_freq_factor");
  spec.original_positions = original_positions(config, rope);
}

void read_yarn(const ConfigReader& config, const ConfigReader& rope, RopeSpec& spec) {
  spec.scaling = RopeSpec::Scaling::yarn;
  spec.original_positions = original_positions(config, rope);
  if (rope.mentions("factor") && !rope.has("factor")) {  // null: as much as positions have grown
    spec.factor = static_cast<double>(config.integer("max_position_embeddings")) / spec.original_positions;
  } else {
    spec.factor = required_factor(rope);
  }
  const auto number_unless_zero = [&](const char* key, double otherwise) {
    const double value = rope.number_or(key, 0, Sign::not_negative);
    return value != 0 ? value : otherwise;
  };
  spec.beta_fast = number_unless_zero("beta_fast", 32);
  spec.beta_slow = number_unless_zero("beta_slow", 1);
  spec.truncate = rope.flag_or("truncate", true);
  const double mscale = rope.number_or("mscale", 0, Sign::not_negative);
  const double mscale_all_dim = rope.number_or("mscale_all_dim", 0, Sign::not_negative);
  if (rope.has("attention_factor")) {
    spec.magnitude = rope.number("attention_factor", Sign::positive);
  } else if (mscale != 0 && mscale_all_dim != 0) {
    spec.magnitude = yarn_magnitude(spec.factor, mscale) / yarn_magnitude(spec.factor, mscale_all_dim);
  } else {
    spec.magnitude = yarn_magnitude(spec.factor, 1);
  }
}

void read_scaling(const ConfigReader& config, const ConfigReader& rope, RopeSpec& spec) {
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "linear") {
    spec.scaling = RopeSpec::Scaling::linear;
    spec.factor = required_factor(rope);
  } else if (type == "llama3") {
    read_llama3(config, rope, spec);
  } else if (type == "yarn") {
    read_yarn(config, rope, spec);
  } else if (type != "default") {
    rope.refuse(rope.has("rope_type") ? "rope_type" : "type", "Weft supports default, linear, llama3 and yarn");
  }
}

// whole: models of this family turn whole heads.
double read_fraction(const ConfigReader& where, double otherwise, bool whole) {
  const double fraction = where.number_or("partial_rotary_factor", otherwise);
  if (whole && fraction != 1) where.refuse("partial_rotary_factor", "models of this family turn whole heads");
  if (fraction <= 0 || fraction > 1) where.refuse("partial_rotary_factor", "it must be above 0 and at most 1");
  return fraction;
}

}  // namespace

RopeSpec read_rope(const ConfigReader& config, double default_theta, double default_fraction) {
  RopeSpec spec;
  spec.base = config.number_or("rope_theta", default_theta, Sign::any, max_base);
  const bool whole = default_fraction == 1;
  spec.fraction = read_fraction(config, default_fraction, whole);
  // Where both are, rope_scaling wins.
  const char* const key = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (config.has(key)) {
    if (config.holds_objects(key)) config.refuse(key, "models of this family have one rotary embedding for all layers");
    const ConfigReader rope = config.object(key);
    spec.fraction = read_fraction(rope, spec.fraction, whole);  // it wins over the one beside it
    spec.base = rope.number_or("rope_theta", spec.base, Sign::any, max_base);
    read_scaling(config, rope, spec);
  }
  if (spec.base <= 1) throw UserError("{}: rope_theta must be greater than 1, is {}", config.where(), spec.base);
  return spec;
}

}  // namespace weft
