#pragma once
// What trains a model, beside weft.h: datasets, the Trainer, and the main() of a program around it.
#include "weft/data/dataset.h"
#include "weft/data/loader.h"
#include "weft/data/text.h"
#include "weft/data/token_windows.h"
#include "weft/train/launch.h"
#include "weft/train/trainer.h"
