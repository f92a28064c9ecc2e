// Timelines to look at and to test the page with: a small simulation of ranks, lanes and collectives. Nothing here is
// a plan of Weft; only the shape is the same.
#pragma once

#include "weft/plan/draw/timeline.h"

namespace weft {

struct SampleShape {
  int stages = 1;    // of a pipeline
  int replicas = 1;  // ranks of a stage: they exchange tokens and reduce gradients
  int micro_batches = 1;
  int layers = 4;  // of a stage
  bool woven = false;
  double noise = 0;  // 0: the estimate; 0.1: a run whose nodes take about 10 % longer or shorter
};
Timeline sample_timeline(const SampleShape& shape);

}  // namespace weft
